"""Carries out what the scheduler orders of a worker that changes its role.

The scheduler's handoff book decides and keeps the deadlines (`scheduler.handoff`); this does one
stage after another and reports each. Nobody waits for it: orders of different workers are carried
out beside each other, and the training loop and the runners go on.

Invariants
- A worker carries the generation of its newest order, so what an older one still does is not
  reported as if it belonged to this one.
- A stage that could not be carried out is reported as failed. A process that dies is reported as
  lost by whoever keeps the fleet, and only there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NoReturn

import ray
import structlog
from ray.exceptions import RayTaskError

from agentrl.runtime.failures import in_short
from agentrl.runtime.staff import GONE, Staff, WorkerSeat
from agentrl.runtime.trainers import TrainerGroup
from scheduler.decisions import (
    CancelShift,
    Decision,
    Evict,
    HandoffEnded,
    HandoffOrder,
    Outcome,
    Shift,
)
from scheduler.events import Event, HandoffFailed, HandoffStage, Role, Stage

log = structlog.get_logger(__name__)


class Handoffs:
    """`on_decision` is called by the driver's link; `run()` must be running."""

    def __init__(
        self,
        *,
        seats: Mapping[str, WorkerSeat],
        staff: Staff,
        trainers: TrainerGroup,
        tell: Callable[[Event], None],
    ) -> None:
        self._seats = seats
        self._staff = staff
        self._trainers = trainers
        self._tell = tell
        self._orders: asyncio.Queue[HandoffOrder | HandoffEnded] = asyncio.Queue()
        self._restarting: set[str] = set()

    def on_decision(self, decision: Decision) -> None:
        match decision:
            case Shift():
                self._shift(decision)
            case HandoffOrder() | HandoffEnded():
                self._orders.put_nowait(decision)
            case CancelShift():
                pass  # what is to be done about it follows as orders
            case Evict():
                pass  # whoever gave the notice sees to the worker
            case _:
                raise AssertionError(f"not about a worker: {decision}")

    def is_restarting(self, worker_id: str) -> bool:
        """Its process was ended by an order, to start in another role; asked once."""
        is_ordered = worker_id in self._restarting
        self._restarting.discard(worker_id)
        return is_ordered

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            while True:
                order = await self._orders.get()
                tasks.create_task(self._carry_out(order))

    # --------------------------------------------------------------------------------- stages

    def _shift(self, shift: Shift) -> None:
        """The worker is out of service from now on, under its new generation."""
        seat = self._seats[shift.worker_id]
        if seat.generation != shift.worker_generation:
            self._fail(
                shift.worker_id, shift.generation, Stage.QUIESCE, "it is another process now"
            )
            return
        seat.generation, seat.is_ready = shift.generation, False
        log.info(
            "a worker shifts",
            worker=seat.worker_id,
            source=shift.source.role.value,
            target=shift.target.role.value,
        )

    async def _carry_out(self, order: HandoffOrder | HandoffEnded) -> None:
        seat = self._seats[order.worker_id]
        try:
            match order:
                case HandoffOrder(stage=Stage.RESTART):
                    self._restart(seat, order)
                case HandoffOrder() if order.generation == seat.generation:
                    await self._stage(seat, order)
                case HandoffEnded(outcome=Outcome.ROLLED_BACK):
                    await self._serve_again(seat, order)
                case HandoffEnded():
                    self._note(order)
                case _:
                    pass  # the process that it was meant for is gone, which is reported elsewhere
        except GONE:
            pass  # reported as lost by whoever keeps the seat
        except RayTaskError as error:
            assert isinstance(order, HandoffOrder)
            log.warning("a handoff failed", worker=order.worker_id, stage=order.stage.value)
            self._fail(order.worker_id, order.generation, order.stage, in_short(error))

    async def _stage(self, seat: WorkerSeat, order: HandoffOrder) -> None:
        version = 0
        match order.stage:
            case Stage.QUIESCE:
                if seat.role is Role.TRAINING:
                    # here, where running out of time costs no more than the shift
                    await self._trainers.saved(seat.worker_id)
                await seat.actor.quiesce.remote()
            case Stage.RELEASE:
                if seat.role is Role.TRAINING:
                    await self._trainers.leave(seat.worker_id)
                    seat.check(order.generation)
                # from here on a process that starts in this seat starts in the new role
                seat.role, seat.url = order.duty.role, ""
                await seat.actor.leave_role.remote()
            case Stage.ACQUIRE:
                pass  # a worker's core stays its own
            case Stage.LOAD:
                seat.role = order.duty.role
                await self._staff.prepare(seat)
                version = seat.version
            case Stage.WARM:
                await self._staff.report(seat)
                return
        self._tell(
            HandoffStage(
                worker_id=seat.worker_id,
                generation=order.generation,
                stage=order.stage,
                version=version,
            )
        )

    async def _serve_again(self, seat: WorkerSeat, ended: HandoffEnded) -> None:
        if seat.generation >= ended.generation:
            return  # its process was lost meanwhile: who follows reports when it is ready
        seat.generation = ended.generation
        await self._staff.report(seat)

    def _restart(self, seat: WorkerSeat, order: HandoffOrder) -> None:
        """End the process; whoever keeps the seat starts another one in the role it has then."""
        if not seat.is_wanted.is_set():
            return  # it is being taken away, which ends the handoff too
        seat.role, seat.generation, seat.url = order.duty.role, order.generation, ""
        self._restarting.add(seat.worker_id)
        ray.kill(seat.actor)

    def _note(self, ended: HandoffEnded) -> None:
        if ended.outcome is Outcome.UNKNOWN:
            log.error("a worker did not come back from a restart", worker=ended.worker_id)
        else:
            log.info("a handoff ended", worker=ended.worker_id, outcome=ended.outcome.value)

    def _fail(self, worker_id: str, generation: int, stage: Stage, reason: str) -> None:
        self._tell(
            HandoffFailed(worker_id=worker_id, generation=generation, stage=stage, reason=reason)
        )
