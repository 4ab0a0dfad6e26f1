"""The worker with the smallest share of its slots in use.

The sticky form stays on the worker that served the last turn and so may still hold the context,
until that worker's load leads the least loaded one by more than `sticky_gap`: then recomputing the
context is cheaper than standing in line. First come, first served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.views import TrajectoryView, WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoad:
    sticky_gap: float = 0.0
    """How much more of its slots, as a share, the old worker may have in use. 0: never stick."""

    def lane(self, trajectory: TrajectoryView) -> str:
        return ""

    def order(self, trajectory: TrajectoryView) -> float:
        return trajectory.ready_t

    def choose(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        best: WorkerView | None = None
        home: WorkerView | None = None
        for worker in workers:
            if not worker.has_slot:
                continue
            if worker.worker_id == trajectory.home_id:
                home = worker
            if best is None or worker.load < best.load:
                best = worker
        if home is None or home.generation != trajectory.home_generation or best is None:
            return best
        return home if home.load - best.load <= self.sticky_gap else best
