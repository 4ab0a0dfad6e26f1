"""Our router: move an attempt only when everything, itself included, gets done sooner.

Forecast work becomes seconds through the cost model of each worker's shape (its bucket), so a long
attempt is drawn to where single sequences run fast and short ones to where many run side by side,
without thresholds on length. A new attempt starts on the worker that drains soonest with it.
A known one stays where its context is cached, even when it has to wait for a slot there, unless
moving it shortens the time until both workers have drained, by more than twice the prefill that the
move costs and by `margin` of the whole; at most once in two turns.

A worker takes in new attempts only up to `memory_share` of its memory: contexts that evict each other
are computed again every turn, which costs far more than a later start. Slots bound nothing here:
with memory to spare, attempts that all begin early and take turns end sooner than some that begin
late, since nobody knows yet which of them are long.

Order, where slots are scarce: one attempt of each group first (the probe tells of its siblings),
then longest forecast first, but none may be overtaken by one that came `patience_s` later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.costs import Shape
from scheduler.fleet import Key
from scheduler.load import LoadBook, Work
from scheduler.policies import LengthEstimator
from scheduler.routing.least_load import home_of
from scheduler.views import TrajectoryView, WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    margin: float = 0.07
    """Gain a move must bring, as a share of the time the old worker needs to drain."""
    memory_share: float = 1.0
    """Of a worker's memory that residents' contexts may fill before starts go elsewhere."""
    patience_s: float = 3600.0
    longest_first: bool = True
    probes_first: bool = True
    tail_workers: int = 0
    """Workers, widest first, that only attempts of the expected tail may live on. None are kept back
    when that would leave no others."""
    tail_tokens: float = 8000.0
    tail_chance: float = 0.25
    """An attempt is of the tail when more than `tail_tokens` are left with at least this chance."""


_ANYWHERE = "anywhere"
_START = "start"


class BucketRouter:
    """A `RoutePolicy` that is also an observer: it keeps the load book itself."""

    def __init__(
        self,
        estimator: LengthEstimator,
        shapes: Mapping[str, Shape],
        settings: BucketSettings | None = None,
    ) -> None:
        """`shapes`: what workers of each bucket cost."""
        self._estimator = estimator
        self._shapes = shapes
        self._settings = settings or BucketSettings()
        self._book = LoadBook()
        self._works: dict[Key, Work] = {}
        """Newest forecast of each open attempt ..."""
        self._forecast_siblings: dict[Key, int] = {}
        """... and how many of its siblings had finished by then."""
        self._leaving: set[Key] = set()
        """Waiting attempts for which somewhere else is better than home."""
        self._probes: dict[tuple[str, str], str] = {}
        """The attempt of each group that went ahead and is still open."""
        self._tail: set[Key] = set()
        self._warm: dict[Key, tuple[str, int]] = {}
        """Worker and generation that were asked to compute an attempt's context ahead."""
        self._slowest_token_s = max(s.decode.step_seconds(1, 0) for s in shapes.values())

    # ------------------------------------------------------------------------------ learning

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        self._estimator.turn_ready(trajectory)
        self._book.update(_key(trajectory), self._forecast(trajectory))

    def placed(self, trajectory: TrajectoryView) -> None:
        assert trajectory.home_id is not None
        key = _key(trajectory)
        self._warm.pop(key, None)
        self._book.settle(key, trajectory.home_id, trajectory.home_generation, self._works[key])

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        self._estimator.turn_finished(trajectory)

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        self._estimator.ended(trajectory, is_complete=is_complete)
        self._book.leave(_key(trajectory))
        self._works.pop(_key(trajectory), None)
        self._forecast_siblings.pop(_key(trajectory), None)
        self._leaving.discard(_key(trajectory))
        self._tail.discard(_key(trajectory))
        self._warm.pop(_key(trajectory), None)
        if self._probes.get(_group(trajectory)) == trajectory.trajectory_id:
            del self._probes[_group(trajectory)]

    def _forecast(self, trajectory: TrajectoryView) -> Work:
        residual = self._estimator.predict(trajectory)
        mean = residual.mean
        context = trajectory.context_tokens
        work = Work(mean, context * mean + residual.second_moment / 2, context)
        key = _key(trajectory)
        self._works[key] = work
        settings = self._settings
        if residual.tail(settings.tail_tokens) >= settings.tail_chance:
            self._tail.add(key)
        else:
            self._tail.discard(key)
        self._forecast_siblings[key] = len(trajectory.siblings_finished)
        return work

    def _open_to(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> Sequence[WorkerView]:
        """Without those kept back for the tail, if this attempt is not of it."""
        kept_back = self._settings.tail_workers
        if not 0 < kept_back < len(workers) or _key(trajectory) in self._tail:
            return workers
        return sorted(workers, key=lambda worker: worker.tp)[:-kept_back]

    def _work(self, trajectory: TrajectoryView) -> Work:
        """What is forecast, anew when another sibling has finished."""
        key = _key(trajectory)
        if self._forecast_siblings[key] < len(trajectory.siblings_finished):
            self._book.update(key, self._forecast(trajectory))
        return self._works[key]

    # ------------------------------------------------------------------------------ deciding

    def order(self, trajectory: TrajectoryView) -> float:
        settings = self._settings
        if not settings.longest_first:
            return trajectory.ready_t
        if settings.probes_first and self._is_probe(trajectory):
            return trajectory.ready_t - settings.patience_s
        seconds = self._work(trajectory).tokens * self._slowest_token_s
        return trajectory.ready_t - min(seconds, settings.patience_s)

    def _is_probe(self, trajectory: TrajectoryView) -> bool:
        """It goes ahead of its siblings, and none of them has finished."""
        if trajectory.home_id is not None or trajectory.siblings_finished:
            return False
        probe = self._probes.setdefault(_group(trajectory), trajectory.trajectory_id)
        return probe == trajectory.trajectory_id

    def lane(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> str:
        home = home_of(trajectory, workers)
        if home is None:
            return _START if trajectory.home_id is None else _ANYWHERE
        if self._better(trajectory, home, workers) is None:
            self._leaving.discard(_key(trajectory))
            return home.worker_id
        self._leaving.add(_key(trajectory))
        return _ANYWHERE

    def choose(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        home = home_of(trajectory, workers)
        if home is None:
            return self._begin(trajectory, workers)
        better = None
        if _key(trajectory) in self._leaving:
            better = self._better(trajectory, home, workers)
        return better or (home if home.has_slot else None)

    def prewarm(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        """The move that would be made now, prefill charged; the tool's result may yet undo it."""
        home = home_of(trajectory, workers)
        if home is None or _key(trajectory) in self._warm:
            return None
        better = self._better(trajectory, home, workers)
        if better is not None:
            self._warm[_key(trajectory)] = (better.worker_id, better.generation)
        return better

    def _begin(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        """Where a context has to be computed in any case."""
        work = self._works[_key(trajectory)]
        best, best_seconds = None, 0.0
        for worker in self._open_to(trajectory, workers):
            if worker.has_slot and self._has_room(worker, work):
                seconds = self._seconds_with(worker, work)
                if best is None or seconds < best_seconds:
                    best, best_seconds = worker, seconds
        return best

    def _better(
        self, trajectory: TrajectoryView, home: WorkerView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        """A worker that is worth leaving home for."""
        if 0 <= trajectory.last_move_turn > trajectory.turn - 2:
            return None
        key = _key(trajectory)
        work = self._works[key]
        load = self._book.load(home.worker_id, home.generation)
        if key not in load.residents:
            return None
        shape = self._shapes[home.bucket]
        stay = load.drain_seconds(shape)
        without = load.drain_seconds_without(shape, key)
        target = (1.0 - self._settings.margin) * stay
        best, best_seconds = None, target
        if without >= target:
            return None
        for worker in self._open_to(trajectory, workers):
            if worker is home or not worker.has_slot:
                continue
            if self._warm.get(key) == (worker.worker_id, worker.generation):
                load = self._book.load(worker.worker_id, worker.generation)
                there, move = load.drain_seconds_with(self._shapes[worker.bucket], work), 0.0
            else:
                move = self._shapes[worker.bucket].prefill.seconds(work.context_tokens, 0)
                there = self._seconds_with(worker, work)
            seconds = max(without, there) + move
            if seconds < best_seconds and self._has_room(worker, work):
                best, best_seconds = worker, seconds
        return best

    def _seconds_with(self, worker: WorkerView, work: Work) -> float:
        shape = self._shapes[worker.bucket]
        load = self._book.load(worker.worker_id, worker.generation)
        return load.drain_seconds_with(shape, work) + shape.prefill.seconds(work.context_tokens, 0)

    def _has_room(self, worker: WorkerView, work: Work) -> bool:
        """An empty worker has room for anything; nobody may wait for ever."""
        load = self._book.load(worker.worker_id, worker.generation)
        if not load.residents:
            return True
        memory = self._settings.memory_share * self._shapes[worker.bucket].kv_tokens
        return load.context_tokens + work.context_tokens <= memory


def _group(trajectory: TrajectoryView) -> tuple[str, str]:
    return trajectory.job, trajectory.group_id


def _key(trajectory: TrajectoryView) -> Key:
    return trajectory.job, trajectory.trajectory_id
