"""Workers in turn, whatever they have to do: the baseline that everything should beat."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.views import TrajectoryView, WorkerView


class RoundRobin:
    def __init__(self) -> None:
        self._next = 0

    def lane(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> str:
        return ""

    def order(self, trajectory: TrajectoryView) -> float:
        return trajectory.ready_t

    def choose(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        for offset in range(len(workers)):
            worker = workers[(self._next + offset) % len(workers)]
            if worker.has_slot:
                self._next = (self._next + offset + 1) % len(workers)
                return worker
        return None
