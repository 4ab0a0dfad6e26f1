"""Training workers as one unit that helps with rollout while no batch waits, all or none.

What rules that only look at the present do with them; `pay_back` weighs them one by one.
"""

from __future__ import annotations

from scheduler.events import Role
from scheduler.policies import ShiftPlan
from scheduler.shifting.selection import ShiftWorld, recruits
from scheduler.views import ShiftView


class LentTrainers:
    def __init__(self, world: ShiftWorld, num_trainers: int) -> None:
        """`num_trainers`: workers that train when a batch waits."""
        self._world = world
        self._num_trainers = num_trainers

    def called_back(self, view: ShiftView) -> ShiftPlan | None:
        """A batch waits: training gets its workers back."""
        world = self._world
        training = view.trainings.get(world.job)
        if training is None or training.batch_tokens is None:
            return None
        missing = self._num_trainers - len(view.serving(world.job, Role.TRAINING))
        return world.plan(recruits(view, world, keep=1)[: max(0, missing)], Role.TRAINING)

    def lent(self, view: ShiftView) -> ShiftPlan | None:
        """No batch waits, and turns do."""
        world = self._world
        training = view.trainings.get(world.job)
        is_free = training is not None and training.batch_tokens is None and not training.is_running
        if not is_free or not view.demand(world.job, Role.ROLLOUT).waiting:
            return None
        return world.plan(view.serving(world.job, Role.TRAINING), Role.ROLLOUT)
