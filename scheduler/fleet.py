"""Who serves, and who holds which slot.

The fleet knows workers and the turns that run on them. A turn holds at most one slot, on one
worker, and gives it back exactly once; a worker that leaves takes all its slots with it. Views
are cached and remade only for workers that changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.events import REJECTED_S, Role, WorkerReady
from scheduler.views import WorkerView

Key = tuple[str, str]
"""A trajectory: its job and its id."""

_Side = tuple[Role, str]
"""Workers of one role and job."""


@dataclass(slots=True)
class _Worker:
    ready: WorkerReady
    since_t: float
    policy_version: int
    running: dict[Key, int] = field(default_factory=dict)
    """Context tokens by turn in a slot."""
    is_closed: bool = False
    """It is leaving: nothing goes here until it reports ready again."""
    rejected_t: float | None = None
    """When a placement here was rejected; nothing goes here for a while after that."""
    view: WorkerView | None = None

    @property
    def is_open(self) -> bool:
        return not self.is_closed and self.rejected_t is None

    def snapshot(self) -> WorkerView:
        if self.view is None:
            ready = self.ready
            self.view = WorkerView(
                worker_id=ready.worker_id,
                generation=ready.generation,
                job=ready.job,
                role=ready.role,
                bucket=ready.bucket,
                tp=ready.tp,
                max_running=ready.max_running,
                kv_tokens=ready.kv_tokens,
                policy_version=self.policy_version,
                num_running=len(self.running),
                running_tokens=sum(self.running.values()),
            )
        return self.view


class Fleet:
    """Workers by id. Order of arrival is order of listing, so equal logs see equal fleets."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._holders: dict[Key, str] = {}
        self._serving: dict[_Side, list[_Worker]] = {}
        self._listings: dict[_Side, tuple[WorkerView, ...]] = {}
        """Remade when any of their workers changed."""
        self.num_changes = 0
        """Rises with everything that a placement could depend on."""
        self.num_member_changes = 0
        """Rises when a worker comes, goes, is closed or open again."""

    def ready(self, event: WorkerReady) -> list[Key]:
        """Bring a worker into service; returns the turns that its older generation was running."""
        known = self._workers.get(event.worker_id)
        if known is not None and known.ready.generation >= event.generation:
            return []
        orphans = self._remove(event.worker_id) if known is not None else []
        self._workers[event.worker_id] = _Worker(event, event.t, event.policy_version)
        self._members_changed()
        return orphans

    def generation(self, worker_id: str) -> int | None:
        known = self._workers.get(worker_id)
        return None if known is None else known.ready.generation

    def weights_loaded(self, worker_id: str, generation: int, version: int) -> None:
        if self._is_current(worker_id, generation):
            self._workers[worker_id].policy_version = version
            self._changed(worker_id)

    def rejected(self, t: float, worker_id: str, generation: int) -> None:
        """Place nothing on this generation of the worker for a while."""
        if self._is_current(worker_id, generation):
            self._workers[worker_id].rejected_t = t
            self._members_changed()

    def tick(self, t: float) -> None:
        """Try workers again that were rejected long enough ago."""
        for worker in self._workers.values():
            if worker.rejected_t is not None and t - worker.rejected_t >= REJECTED_S:
                worker.rejected_t = None
                self._members_changed()

    def close(self, worker_id: str) -> None:
        """Place nothing on a worker any more; what runs there goes on."""
        if worker_id in self._workers:
            self._workers[worker_id].is_closed = True
            self._members_changed()

    def running(self, worker_id: str) -> list[Key]:
        """The turns that hold a slot there."""
        known = self._workers.get(worker_id)
        return [] if known is None else list(known.running)

    def release(self, worker_id: str) -> list[Key]:
        """Take a worker out of service; returns the turns that were still running on it."""
        return self._remove(worker_id) if worker_id in self._workers else []

    def view(self, worker_id: str) -> WorkerView:
        return self._workers[worker_id].snapshot()

    def members(self) -> list[tuple[WorkerView, float]]:
        """Workers in service and since when, whatever they serve."""
        return [
            (worker.snapshot(), worker.since_t)
            for worker in self._workers.values()
            if worker.is_open
        ]

    def take(self, key: Key, worker: WorkerView, context_tokens: int) -> None:
        assert key not in self._holders, f"{key} holds a slot on {self._holders[key]} already"
        assert worker.has_slot, f"{worker.worker_id} has no free slot"
        self._workers[worker.worker_id].running[key] = context_tokens
        self._holders[key] = worker.worker_id
        self._changed(worker.worker_id)

    def free(self, key: Key) -> None:
        """Give back the slot a trajectory holds, if it holds one."""
        worker_id = self._holders.pop(key, None)
        if worker_id is not None:
            del self._workers[worker_id].running[key]
            self._changed(worker_id)

    def serving(self, role: Role, job: str) -> tuple[WorkerView, ...]:
        """All workers of this role and job that can be given work, full ones too."""
        side = (role, job)
        listing = self._listings.get(side)
        if listing is None:
            serving = self._serving.get(side)
            if serving is None:
                serving = self._serving[side] = self._find_serving(side)
            listing = self._listings[side] = tuple(
                [worker.view or worker.snapshot() for worker in serving]
            )
        return listing

    def _find_serving(self, side: _Side) -> list[_Worker]:
        return [
            worker
            for worker in self._workers.values()
            if (worker.ready.role, worker.ready.job) == side and worker.is_open
        ]

    def _is_current(self, worker_id: str, generation: int) -> bool:
        known = self._workers.get(worker_id)
        return known is not None and known.ready.generation == generation

    def _remove(self, worker_id: str) -> list[Key]:
        orphans = list(self._workers.pop(worker_id).running)
        for key in orphans:
            del self._holders[key]
        self._members_changed()
        return orphans

    def _members_changed(self) -> None:
        self._serving.clear()
        self._listings.clear()
        self.num_changes += 1
        self.num_member_changes += 1

    def _changed(self, worker_id: str) -> None:
        worker = self._workers[worker_id]
        worker.view = None
        self.num_changes += 1
        self._listings.pop((worker.ready.role, worker.ready.job), None)
