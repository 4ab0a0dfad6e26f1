"""Routing by thresholds on length, as multi-level feedback queues and Libra's gate do it.

Buckets are ordered from short to long by limits on tokens. A `Grader` says which bucket an attempt
belongs in; inside the bucket the sticky least load rule picks the worker, and when the bucket is
full any other worker serves, so nobody waits while a slot is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from scheduler.estimators.prefix_tree import PrefixTree
from scheduler.routing.least_load import LeastLoad, home_of
from scheduler.views import TrajectoryView, WorkerView

Limits = Sequence[tuple[str, float]]
"""Bucket names with the most tokens that belong there, rising; the last limit is infinite."""


class Grader(Protocol):
    """Which bucket an attempt belongs in now; `current` is the one it belonged in before."""

    def grade(self, trajectory: TrajectoryView, current: str) -> str: ...


def bucket_of(limits: Limits, tokens: float) -> str:
    return next(name for name, limit in limits if tokens <= limit)


class ElapsedGrader:
    """By what it has sampled so far, never back down: a multi-level feedback queue."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def grade(self, trajectory: TrajectoryView, current: str) -> str:
        return bucket_of(self._limits, trajectory.tokens)


class GatedGrader:
    """By what a prefix tree expects, when its mean and its 90th percentile agree: Libra's gate.

    New attempts begin in the shortest bucket.
    """

    def __init__(self, limits: Limits, tree: PrefixTree) -> None:
        self._limits = limits
        self._tree = tree

    def grade(self, trajectory: TrajectoryView, current: str) -> str:
        expected = self._tree.expected(trajectory)
        if expected is None:
            return current
        by_mean = bucket_of(self._limits, expected.mean)
        return by_mean if by_mean == bucket_of(self._limits, expected.p90) else current


class ThresholdRouter:
    """A `RoutePolicy` that follows a grader."""

    def __init__(self, grader: Grader, limits: Limits, place: LeastLoad) -> None:
        self._grader = grader
        self._first = limits[0][0]
        self._place = place
        self._elsewhere = LeastLoad(sticky_gap=place.sticky_gap)
        self._grades: dict[tuple[str, str], str] = {}

    def lane(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> str:
        grade = self._grade(trajectory)
        return f"{grade}/{self._place.lane(trajectory, _inside(grade, workers))}"

    def order(self, trajectory: TrajectoryView) -> float:
        return trajectory.ready_t

    def choose(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        inside = _inside(self._grade(trajectory), workers)
        chosen = self._place.choose(trajectory, inside)
        is_waiting = self._place.waits_for_home and home_of(trajectory, inside) is not None
        return chosen if chosen or is_waiting else self._elsewhere.choose(trajectory, workers)

    def _grade(self, trajectory: TrajectoryView) -> str:
        key = (trajectory.job, trajectory.trajectory_id)
        grade = self._grader.grade(trajectory, self._grades.get(key, self._first))
        self._grades[key] = grade
        return grade


def _inside(bucket: str, workers: Sequence[WorkerView]) -> list[WorkerView]:
    return [worker for worker in workers if worker.bucket == bucket]
