"""Least load with the queue in order of forecast length: Seer's order, StreamRL's idea.

Only the order changes, not the place. `probe_first` lets one attempt of each group go ahead, so that
its length can stand for its siblings'.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.policies import LengthEstimator
from scheduler.routing.least_load import LeastLoad
from scheduler.views import TrajectoryView, WorkerView

_PROBE_TOKENS = 1e9


class LongestFirst:
    """A `RoutePolicy`; the estimator is an observer of its own."""

    def __init__(self, estimator: LengthEstimator, place: LeastLoad) -> None:
        self._estimator = estimator
        self._place = place
        self._probes: dict[tuple[str, str], str] = {}
        """The first attempt seen of each group."""

    def lane(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> str:
        return self._place.lane(trajectory, workers)

    def order(self, trajectory: TrajectoryView) -> float:
        group = (trajectory.job, trajectory.group_id)
        probe = self._probes.setdefault(group, trajectory.trajectory_id)
        if probe == trajectory.trajectory_id and not trajectory.siblings_finished:
            return trajectory.tokens - _PROBE_TOKENS
        return -self._estimator.predict(trajectory).mean

    def choose(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        return self._place.choose(trajectory, workers)
