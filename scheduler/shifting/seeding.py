"""Reserved training workers that generate at the start of each step, in the manner of RLBoost.

They help with rollout for `seed_s` seconds after a publication, then go back to training, so that
preemptible rollout workers finish what is left. `seed_s` follows the two bubbles of the last step:
the time trainers waited for the batch makes it longer, the time rollout workers had nothing to do
makes it shorter, by a third of the difference. (RLBoost, arXiv 2510.19225; what it remembers per
number of instances is left out here.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.events import Role
from scheduler.policies import ShiftPlan
from scheduler.shifting.selection import ShiftWorld, recruits
from scheduler.views import ShiftView, TrajectoryView, WorkerView

_SHORTEST_S = 5.0


class SeedingController:
    num_weighed = 0

    def __init__(self, world: ShiftWorld, *, num_trainers: int, seed_s: float = 150.0) -> None:
        self._world = world
        self._num_trainers = num_trainers
        self._seed_s = seed_s
        self._version = -1
        self._began_t = 0.0
        self._back_t: float | None = None
        """When trainers were back at training in this step."""
        self._batch_t: float | None = None

    def state(self) -> dict[str, Any]:
        return {"seed_s": self._seed_s}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._seed_s = state["seed_s"]

    def plan(self, view: ShiftView) -> ShiftPlan | None:
        training = view.trainings.get(self._world.job)
        if training is None:
            return None
        if training.version > self._version:
            self._next_step(view.t, training.version)
        self._watch(view, has_batch=training.batch_tokens is not None)
        if view.open_shifts or training.is_running:
            return None
        return self._move(view, is_seeding=view.t - self._began_t < self._seed_s)

    def _move(self, view: ShiftView, *, is_seeding: bool) -> ShiftPlan | None:
        world = self._world
        trainers = view.serving(world.job, Role.TRAINING)
        if is_seeding and self._batch_t is None:
            has_work = view.demand(world.job, Role.ROLLOUT).waiting > 0
            return world.plan(trainers, Role.ROLLOUT) if has_work else None
        missing = self._num_trainers - len(trainers)
        if missing > 0:
            return world.plan(recruits(view, world, keep=1)[:missing], Role.TRAINING)
        self._back_t = self._back_t or view.t
        return None

    def _watch(self, view: ShiftView, *, has_batch: bool) -> None:
        if self._batch_t is None and has_batch:
            self._batch_t = view.t

    def _next_step(self, t: float, version: int) -> None:
        if self._batch_t is not None:
            back_t = self._back_t if self._back_t is not None else self._batch_t
            trainer_bubble = max(0.0, self._batch_t - back_t)
            rollout_bubble = max(0.0, t - self._batch_t)
            change = (trainer_bubble - rollout_bubble) / 3
            self._seed_s = max(_SHORTEST_S, self._seed_s + change)
        self._version, self._began_t = version, t
        self._back_t = self._batch_t = None

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        return False
