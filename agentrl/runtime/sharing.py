"""The seats of a run on a fleet that several runs share: filled when a slot is granted, left when
one is asked back.

To the run's own scheduler a seat that is left is a worker that leaves service, and one that is filled
is a worker that arrives. What a worker served lies in the parameter store; what it trained rests
with the trainers.

Invariants
- A seat has a slot from its grant until nothing runs there any more, and only then is the slot
  given back.
- Work that cannot be left in the middle (a warm-up, an optimizer step) is finished first. That
  costs the run its credit with the broker, so the others get it back.
- The last worker of a role leaves last, when another one can go instead.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

import ray
import structlog

from agentrl.runtime.broker import GRACE_S, SlotPlace, Withdrawn
from agentrl.runtime.broker_link import BrokerLink
from agentrl.runtime.departures import Departures
from agentrl.runtime.drains import Drains
from agentrl.runtime.staff import WorkerSeat
from scheduler.events import Role
from scheduler.slices import Grant, Slot, TakeBack

log = structlog.get_logger(__name__)

POLL_S = 1.0
SILENCE_S = 30.0
"""A broker that says nothing for this long is no reason to go on waiting for slots."""
STEP_S = 600.0
"""For a training worker to come to the end of its step."""


class SharedSeats:
    """`listen()` must be running; after `fill_first()`, `run()` must be as well."""

    def __init__(
        self,
        *,
        broker: BrokerLink,
        at_least: int,
        departures: Departures,
        drains: Drains,
        waiting: Callable[[str], AbstractContextManager[None]],
        progressed: Callable[[], None],
    ) -> None:
        """`progressed` tells the watchdog that a wait is another run's turn, and not a fault."""
        self._broker = broker
        self._at_least = at_least
        self._departures = departures
        self._drains = drains
        self._waiting = waiting
        self._progressed = progressed
        self._seats: Sequence[WorkerSeat] = ()
        self._leaving: set[str] = set()
        self._put_off: list[TakeBack] = []
        """Asked for before the run could let go of anything."""

    async def listen(self) -> NoReturn:
        await self._broker.run()

    async def fill_first(self, seats: Sequence[WorkerSeat]) -> None:
        """Wait for as many slots as the run needs at least; seats without one are not wanted."""
        self._seats = seats
        for seat in seats:
            seat.is_wanted.clear()
        waiting = asyncio.create_task(self._name_the_wait())
        try:
            while self._is_short() or self._broker.has_news:
                match await self._broker.next():
                    case Grant() as grant:
                        self._enter(grant)
                    case TakeBack() as asked:
                        self._put_off.append(asked)
                    case Withdrawn(slot=slot):
                        self._withdraw(slot)
        finally:
            waiting.cancel()

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._name_the_wait())
            tasks.create_task(self._say_what_has_begun())
            tasks.create_task(self._leave_draining_nodes(tasks))
            for asked in self._put_off:
                tasks.create_task(self._leave(asked.slot))
            while True:
                match await self._broker.next():
                    case Grant() as grant:
                        self._enter(grant)
                    case TakeBack(slot=slot):
                        tasks.create_task(self._leave(slot))
                    case Withdrawn(slot=slot):
                        self._withdraw(slot)

    async def close(self) -> None:
        await self._broker.leave()

    # ----------------------------------------------------------------------- enter and leave

    def _enter(self, grant: Grant) -> None:
        """Fill a vacant seat, of the role that has the fewest workers now."""
        vacant = [seat for seat in self._seats if not seat.slot]
        assert vacant, "the broker granted more slots than were wanted"
        filled = Counter(seat.role for seat in self._filled())
        seat = min(vacant, key=lambda seat: filled[seat.role])
        log.info(
            "a slot of the fleet was granted",
            worker=seat.worker_id,
            slot=grant.slot,
            is_warm=grant.is_warm,
        )
        seat.slot = grant.slot
        seat.is_wanted.set()

    async def _leave(self, asked: Slot) -> None:
        """Give this slot back, or another one that is less needed."""
        seat = self._least_needed(asked)
        if seat is not None:
            await self._vacate(seat, STEP_S if seat.role is Role.TRAINING else GRACE_S)

    async def _leave_draining_nodes(self, tasks: asyncio.TaskGroup) -> NoReturn:
        while True:
            for seat in self._filled():
                grace_s = self._drains.left_s(SlotPlace.of(seat.slot).node_id)
                if grace_s is not None and seat.worker_id not in self._leaving:
                    tasks.create_task(self._vacate(seat, grace_s))
            await asyncio.sleep(POLL_S)

    async def _vacate(self, seat: WorkerSeat, grace_s: float) -> None:
        """Take the worker away, and give its slot back."""
        self._leaving.add(seat.worker_id)
        slot = seat.slot
        seat.is_wanted.clear()
        await self._departures.leave(seat, grace_s)
        self._leaving.remove(seat.worker_id)
        if seat.slot == slot:
            seat.slot = ""
            log.info("a slot was given back", worker=seat.worker_id, slot=slot)
            await self._broker.give_back(slot)

    def _least_needed(self, slot: Slot) -> WorkerSeat | None:
        """The one on this slot, unless it is the last of its role and another one is not."""
        staying = [seat for seat in self._filled() if seat.worker_id not in self._leaving]
        of_role = Counter(seat.role for seat in staying)
        return min(staying, key=lambda s: (of_role[s.role] == 1, s.slot != slot), default=None)

    def _withdraw(self, slot: Slot) -> None:
        """Whoever keeps the seat sees its process end, and starts no other."""
        for seat in self._filled():
            if seat.slot == slot:
                log.warning("a slot of the fleet is gone", worker=seat.worker_id, slot=slot)
                seat.slot = ""
                seat.is_wanted.clear()
                if seat.actor is not None:
                    ray.kill(seat.actor)

    # ---------------------------------------------------------------------------------- waits

    async def _name_the_wait(self) -> NoReturn:
        """While there are too few slots to work with, that is what the run waits for."""
        while True:
            if self._is_short():
                with self._waiting(self._shortage()):
                    while self._is_short():
                        if time.monotonic() - self._broker.heard_t < SILENCE_S:
                            self._progressed()
                        await asyncio.sleep(POLL_S)
            await asyncio.sleep(POLL_S)

    async def _say_what_has_begun(self) -> NoReturn:
        """The run's slice begins when its workers are there, not while they start."""
        begun: set[str] = set()
        while True:
            held = {seat.slot for seat in self._filled()}
            if not held <= begun and all(seat.is_ready for seat in self._filled()):
                await self._broker.begun()
                begun = held
            begun &= held
            await asyncio.sleep(POLL_S)

    def _is_short(self) -> bool:
        return len(self._filled()) < self._at_least

    def _shortage(self) -> str:
        return (
            f"slots of the shared fleet: {self._at_least} needed, {len(self._filled())} held, "
            "the others are other runs' turn"
        )

    def _filled(self) -> list[WorkerSeat]:
        return [seat for seat in self._seats if seat.slot]
