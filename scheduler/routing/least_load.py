"""The worker with the smallest share of its slots in use. First come, first served.

The sticky form stays on the worker that served the last turn and so may still hold the context,
until that worker's load leads the least loaded one by more than `sticky_gap`: then recomputing the
context is cheaper than standing in line. `waits_for_home` makes it stand in line even when all
slots there are taken, as long as the worker lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.views import TrajectoryView, WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoad:
    sticky_gap: float = 0.0
    """How much more of its slots, as a share, the old worker may have in use. 0: never stick."""
    waits_for_home: bool = False

    def lane(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> str:
        home = home_of(trajectory, workers) if self.waits_for_home else None
        return "" if home is None else home.worker_id

    def order(self, trajectory: TrajectoryView) -> float:
        return trajectory.ready_t

    def choose(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        home = home_of(trajectory, workers)
        if home is not None and self.waits_for_home:
            return home if home.has_slot else None
        best: WorkerView | None = None
        for worker in workers:
            if worker.has_slot and (best is None or worker.load < best.load):
                best = worker
        if home is None or not home.has_slot or best is None:
            return best
        return home if home.load - best.load <= self.sticky_gap else best


def home_of(trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> WorkerView | None:
    """The worker that may still hold the trajectory's cache."""
    for worker in workers:
        if worker.worker_id == trajectory.home_id:
            return worker if worker.generation == trajectory.home_generation else None
    return None
