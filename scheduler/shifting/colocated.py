"""The colocated layout: all workers do the same, one phase after the other.

Rollout until no attempt is open, then judging until no request is, then training: what synchronous
systems do that give every accelerator to one role at a time. With staleness the phases follow
whatever has work, in that order, and training as soon as a batch waits.

An attempt may ask a judge before it has ended. Where all that are open have rested for a while and
judges are asked, judging goes first, until no request is left.
"""

from __future__ import annotations

from scheduler.events import Role
from scheduler.policies import ShiftPlan
from scheduler.shifting.selection import ShiftWorld
from scheduler.views import Demand, ShiftView, TrajectoryView, WorkerView

_LONG_REST_S = 5.0
"""Longer than most tool calls."""


class ColocatedPhases:
    num_weighed = 0

    def __init__(self, world: ShiftWorld) -> None:
        self._world = world
        self._resting_since: float | None = None
        """All open attempts rest, and judges are asked."""

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
        rollout, genrm = view.demand(job, Role.ROLLOUT), view.demand(job, Role.GENRM)
        if genrm.total and (not rollout.total or self._must_judge(view, rollout)):
            return Role.GENRM
        return Role.ROLLOUT if rollout.total else None

    def _must_judge(self, view: ShiftView, rollout: Demand) -> bool:
        """Attempts wait for their judges, or are finally to be asked what they were told."""
        if view.serving(self._world.job, Role.GENRM):
            return True
        if rollout.waiting or rollout.decoding:
            self._resting_since = None
            return False
        if self._resting_since is None:
            self._resting_since = view.t
        return view.t - self._resting_since >= _LONG_REST_S

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        return False
