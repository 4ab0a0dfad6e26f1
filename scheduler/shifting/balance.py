"""How many workers should train when serving and training overlap.

In the long run a batch takes as long as the slower of the two stages. What a batch costs to serve is
measured, in fully loaded worker seconds, so that a stage that waits for the other does not look
busy; what it costs to train comes from the cost model.
"""

from __future__ import annotations

from scheduler.shifting.selection import ShiftWorld
from scheduler.views import TrainingView

_SERVED_AT = 0.9
"""Share of serving workers' time that is of use: the rest is tails and shifts."""
_SLOWER = 0.03
"""A change of the number of trainers must make the period shorter by this share."""


class Balance:
    def __init__(self, world: ShiftWorld) -> None:
        self._world = world
        self._last_t: float | None = None
        self._served_s = 0.0
        """Worker seconds of serving so far."""
        self._per_group_s = 0.0
        self._tokens = 0
        self._chosen = 0

    def watch(self, t: float, training: TrainingView, worth: float, left_s: float) -> None:
        """`worth`: fully loaded workers that serve now; `left_s`: what open groups still need."""
        if self._last_t is not None:
            self._served_s += worth * (t - self._last_t)
        self._last_t = t
        num_groups = training.accepted_groups + training.running_groups
        self._per_group_s = (self._served_s + left_s) / max(1, num_groups)
        self._tokens = training.batch_tokens or training.last_step_tokens or self._tokens

    def trainers(self, total: int) -> int:
        """The number that makes the slower stage fastest; the one chosen before, when as good."""
        sizes = self._world.training_sizes or tuple(range(1, total))
        least_serving = 2 if self._world.has_judge else 1
        sizes = tuple(size for size in sizes if size <= total - least_serving)
        if not sizes or not self._tokens:
            return self._chosen
        best = min(sizes, key=lambda size: self._period_s(size, total))
        if self._chosen in sizes:
            better = self._period_s(best, total) < (1 - _SLOWER) * self._period_s(
                self._chosen, total
            )
            best = best if better else self._chosen
        self._chosen = best
        return best

    def _period_s(self, trainers: int, total: int) -> float:
        per_batch = self._per_group_s * self._world.groups_per_step
        serving_s = per_batch / (_SERVED_AT * (total - trainers))
        return max(serving_s, self._world.training.seconds(self._tokens, trainers))
