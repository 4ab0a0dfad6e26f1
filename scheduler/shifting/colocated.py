"""The colocated layout: all workers do the same, one phase after the other.

Rollout until no attempt is open, then judging until no request is, then training: what synchronous
systems do that give every accelerator to one role at a time. With staleness the phases follow
whatever has work, in that order, and training as soon as a batch waits.
"""

from __future__ import annotations

from scheduler.events import Role
from scheduler.policies import ShiftPlan
from scheduler.shifting.selection import ShiftWorld
from scheduler.views import ShiftView, TrajectoryView, WorkerView


class ColocatedPhases:
    def __init__(self, world: ShiftWorld) -> None:
        self._world = world

    def plan(self, view: ShiftView) -> ShiftPlan | None:
        if view.open_shifts:
            return None
        phase = self._phase(view)
        return None if phase is None else self._world.plan(view.members, phase)

    def _phase(self, view: ShiftView) -> Role | None:
        job = self._world.job
        training = view.trainings.get(job)
        if training is None or training.is_running:
            return None
        if training.batch_tokens is not None:
            return Role.TRAINING
        if view.demand(job, Role.ROLLOUT).total:
            return Role.ROLLOUT
        if view.demand(job, Role.GENRM).total:
            return Role.GENRM
        return None

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        return False
