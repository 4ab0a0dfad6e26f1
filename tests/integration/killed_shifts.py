"""`agentrl train` whose workers are killed at stages of their handoffs, each stage once each way.

    python killed_shifts.py train run.yaml

The stages that were hit are written to killed.txt, one a line.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import ray

import agentrl.runtime.fleet
from agentrl.cli.main import app
from agentrl.runtime.handoffs import Handoffs
from agentrl.runtime.staff import WorkerSeat
from scheduler.decisions import HandoffOrder
from scheduler.events import Role, Stage

STAGES = (Stage.QUIESCE, Stage.RELEASE, Stage.ACQUIRE, Stage.LOAD, Stage.WARM)
CALM_STAGES = 6
"""Carried out between two kills, so that each kill meets a fleet that is whole again."""


class Killer:
    def __init__(self) -> None:
        self._left = list(product(STAGES, (Role.ROLLOUT, Role.TRAINING)))
        self._calm = 0

    def meet(self, seat: WorkerSeat, order: HandoffOrder, *, num_trainers: int) -> None:
        """The last worker that holds the training state is spared until that rests: without it
        a run goes on from its checkpoint, which another test shows."""
        self._calm += 1
        point = (order.stage, order.duty.role)
        if point not in self._left or self._calm <= CALM_STAGES:
            return
        holds_state = order.stage in (Stage.QUIESCE, Stage.RELEASE) and seat.role is Role.TRAINING
        if holds_state and num_trainers < 2:
            return
        self._calm = 0
        self._left.remove(point)
        with Path("killed.txt").open("a") as file:
            file.write(f"{order.stage.value} to {order.duty.role.value}\n")
        ray.kill(seat.actor)


class KillingHandoffs(Handoffs):
    killer = Killer()

    async def _stage(self, seat: WorkerSeat, order: HandoffOrder) -> None:
        self.killer.meet(seat, order, num_trainers=len(self._trainers._members))
        await super()._stage(seat, order)


if __name__ == "__main__":
    agentrl.runtime.fleet.Handoffs = KillingHandoffs  # type: ignore[misc]
    app()
