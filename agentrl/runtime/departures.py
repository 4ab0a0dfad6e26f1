"""Workers that are taken away with some notice: they hand over what they have, and end.

The notice is SIGTERM to the process, or that Ray drains its machine.

The scheduler hears of it first, and sends their turns elsewhere. A training worker leaves between
two steps; where the time does not suffice for that, its step is done over by the others, as after
any loss.

Invariant: the process in the seat has ended when its time is up, or before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import ray
import structlog

from agentrl.runtime.beside import beside
from agentrl.runtime.drains import Drains
from agentrl.runtime.link import Actor
from agentrl.runtime.staff import GONE, WorkerSeat
from agentrl.runtime.trainers import TrainerGroup
from scheduler.events import Event, PreemptionNotice, Role

log = structlog.get_logger(__name__)


class Departures:
    """`boundary` is set between two optimizer steps, when all has the newest weights."""

    def __init__(
        self,
        *,
        trainers: TrainerGroup,
        drains: Drains,
        tell: Callable[[Event], None],
        boundary: asyncio.Event,
    ) -> None:
        self._trainers = trainers
        self._drains = drains
        self._tell = tell
        self._boundary = boundary

    async def heed(self, seat: WorkerSeat) -> None:
        """Take the process in the seat away when it is to go; it may end without a notice."""
        notices: list[asyncio.Future[float]] = []
        try:
            node_id = await seat.actor.node_id.remote()
            notices.append(asyncio.ensure_future(seat.actor.notice.remote()))
            if not seat.slot:  # one on a slot of a shared fleet goes when the slot does
                notices.append(asyncio.create_task(self._drains.of(node_id)))
            await asyncio.wait(notices, return_when=asyncio.FIRST_COMPLETED)
            grace_s = min(notice.result() for notice in notices if notice.done())
        except GONE:
            return
        finally:
            for notice in notices:
                notice.cancel()
        await self.leave(seat, grace_s)

    async def leave(self, seat: WorkerSeat, grace_s: float) -> None:
        """Returns when the process in the seat has ended."""
        log.info("a worker will be taken away", worker=seat.worker_id, grace_s=grace_s)
        seat.is_leaving = True
        self._tell(
            PreemptionNotice(
                worker_id=seat.worker_id, generation=seat.generation, deadline_s=grace_s
            )
        )
        process = seat.actor
        try:
            async with asyncio.timeout(grace_s):
                await beside(self._hand_over(seat, process), _until_dead(process))
        except TimeoutError:
            log.warning("a worker had too little time to leave", worker=seat.worker_id)
        except GONE:
            pass  # it or its engine has ended already, or it found no place any more
        ray.kill(process)
        with suppress(*GONE):
            await _until_dead(process)

    async def _hand_over(self, seat: WorkerSeat, process: Actor) -> None:
        if seat.role is Role.TRAINING:
            await self._boundary.wait()
            await self._trainers.leave(seat.worker_id)
        else:
            await process.quiesce.remote()
        await process.leave_role.remote()


async def _until_dead(process: Actor) -> None:
    """Raises what Ray raises then."""
    await process.lifeline.remote()
