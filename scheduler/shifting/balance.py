"""How many workers should train when serving and training overlap.

In the long run a batch takes as long as the slower of the two stages. What a batch costs to train
comes from the cost model. What it costs to serve is measured, in fully loaded worker seconds, over
the groups that were admitted in the last few versions, since lengths drift; and how much of a serving
worker's time is of such use is measured while trainers wait for serving, tails and all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.shifting.selection import ShiftWorld
from scheduler.views import TrainingView

_REMEMBERED_VERSIONS = 3
_GUESSED_USE = 0.9
_GUESS_WEIGHT_S = 200.0
"""Worker seconds that the guess of a serving worker's use counts for."""
_SLOWER = 0.2
"""A change of the number of trainers must make the period shorter by this share."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where things stood at a version."""

    work_s: float
    """Serving done and still to be done, of all groups admitted so far."""
    groups: int


class Balance:
    def __init__(self, world: ShiftWorld) -> None:
        self._world = world
        self._last_t: float | None = None
        self._version = -1
        self._served_s = 0.0
        self._now = _Mark(0.0, 0)
        self._marks: deque[_Mark] = deque(maxlen=_REMEMBERED_VERSIONS)
        self._useful_s = _GUESSED_USE * _GUESS_WEIGHT_S
        self._present_s = _GUESS_WEIGHT_S
        self._tokens = 0
        self._chosen = 0

    def state(self) -> dict[str, Any]:
        """What has been measured, as plain data."""
        return {
            "version": self._version,
            "served_s": self._served_s,
            "marks": [[mark.work_s, mark.groups] for mark in self._marks],
            "useful_s": self._useful_s,
            "present_s": self._present_s,
            "tokens": self._tokens,
            "chosen": self._chosen,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._version, self._served_s = state["version"], state["served_s"]
        self._marks.extend(_Mark(work_s, groups) for work_s, groups in state["marks"])
        self._useful_s, self._present_s = state["useful_s"], state["present_s"]
        self._tokens, self._chosen = state["tokens"], state["chosen"]

    def watch(
        self, t: float, training: TrainingView, *, worth: float, serving: int, left_s: float
    ) -> None:
        """`worth`: of the `serving` workers, in fully loaded ones; `left_s`: worker seconds that
        open groups still need."""
        elapsed_s = 0.0 if self._last_t is None else t - self._last_t
        self._last_t = t
        self._served_s += worth * elapsed_s
        is_awaited = not training.is_running and training.batch_tokens is None
        if is_awaited and training.version:
            self._useful_s += worth * elapsed_s
            self._present_s += serving * elapsed_s
        groups = training.accepted_groups + training.running_groups
        self._now = _Mark(self._served_s + left_s, groups)
        if training.version > self._version:
            self._version = training.version
            self._marks.append(self._now if self._version else _Mark(0.0, 0))
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
            now_s = self._period_s(self._chosen, total)
            best = best if self._period_s(best, total) < (1 - _SLOWER) * now_s else self._chosen
        self._chosen = best
        return best

    def _period_s(self, trainers: int, total: int) -> float:
        use = self._useful_s / self._present_s
        serving_s = self._batch_work_s() / (use * (total - trainers))
        return max(serving_s, self._world.train_s(self._tokens, trainers))

    def _batch_work_s(self) -> float:
        """Worker seconds to serve one batch of the groups admitted last."""
        for mark in self._marks:
            groups = self._now.groups - mark.groups
            if groups > 0:
                return (self._now.work_s - mark.work_s) / groups * self._world.groups_per_step
        return 0.0
