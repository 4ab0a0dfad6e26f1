"""`agentrl train` whose workers are killed at stages of their handoffs, each stage once each way.

    WAYS="rollout>training training>rollout" python killed_shifts.py train run.yaml

The stages that were hit are written to killed.txt, one a line. With DETOURS set, workers move in
all six ways (`detours`), whatever policy the file names.
"""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import detours
import ray

import agentrl.runtime.fleet
import agentrl.runtime.scheduling
from agentrl.cli.main import app
from agentrl.runtime.handoffs import Handoffs
from agentrl.runtime.staff import WorkerSeat
from scheduler.decisions import HandoffOrder, Shift
from scheduler.events import Role, Stage

STAGES = (Stage.QUIESCE, Stage.RELEASE, Stage.ACQUIRE, Stage.LOAD, Stage.WARM)
CALM_STAGES = 6
"""Carried out between two kills, so that each kill meets a fleet that is whole again."""
Way = tuple[Role, Role]


class Killer:
    def __init__(self, ways: list[Way]) -> None:
        self._left = list(product(STAGES, ways))
        self._calm = 0

    def meet(self, seat: WorkerSeat, order: HandoffOrder, way: Way, *, num_trainers: int) -> None:
        """The last worker that holds the training state is spared until that rests: without it
        a run goes on from its checkpoint, which another test shows."""
        self._calm += 1
        point = (order.stage, way)
        if point not in self._left or self._calm <= CALM_STAGES:
            return
        holds_state = order.stage in (Stage.QUIESCE, Stage.RELEASE) and way[0] is Role.TRAINING
        if holds_state and num_trainers < 2:
            return
        self._calm = 0
        self._left.remove(point)
        with Path("killed.txt").open("a") as file:
            file.write(f"{order.stage.value}: {way[0].value} to {way[1].value}\n")
        ray.kill(seat.actor)


class KillingHandoffs(Handoffs):
    killer = Killer([])
    sources: dict[str, Role] = {}  # noqa: RUF012  of each worker's newest shift; one fleet a process

    def _shift(self, shift: Shift) -> None:
        self.sources[shift.worker_id] = shift.source.role
        super()._shift(shift)

    async def _stage(self, seat: WorkerSeat, order: HandoffOrder) -> None:
        way = (self.sources[seat.worker_id], order.duty.role)
        self.killer.meet(seat, order, way, num_trainers=len(self._trainers._members))
        await super()._stage(seat, order)


if __name__ == "__main__":
    ways = [way.split(">") for way in os.environ["WAYS"].split()]
    KillingHandoffs.killer = Killer([(Role(source), Role(target)) for source, target in ways])
    agentrl.runtime.fleet.Handoffs = KillingHandoffs  # type: ignore[misc]
    if "DETOURS" in os.environ:
        agentrl.runtime.scheduling.wire_shifts = detours.wire_shifts
    app()
