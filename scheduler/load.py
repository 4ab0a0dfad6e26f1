"""Who lives where, and how much work that is: the router's picture of each worker's future.

A resident is a trajectory whose last turn was served by the worker, running or between turns: it
will most likely come back. Sums over residents make the time a worker needs to drain closed-form:
with `n` sequences of residuals `r` and contexts `x`, all decode steps together take

    (d + b) * max(r)  +  sum(c * r + a * (x * r + r * r / 2))

whatever the order in which they run, so one resident more or less is a constant-time change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.costs import Shape
from scheduler.fleet import Key


@dataclass(frozen=True, slots=True)
class Work:
    """What is expected of one trajectory from here on."""

    tokens: float
    """Mean of what is left to sample."""
    kv_steps: float
    """Mean of context times steps: x * r + r * r / 2."""
    context_tokens: int


@dataclass(slots=True)
class WorkerLoad:
    """Sums over the residents of one worker."""

    tokens: float = 0.0
    kv_steps: float = 0.0
    context_tokens: int = 0
    longest: float = 0.0
    residents: dict[Key, Work] = field(default_factory=dict)

    def add(self, key: Key, work: Work) -> None:
        self.residents[key] = work
        self.tokens += work.tokens
        self.kv_steps += work.kv_steps
        self.context_tokens += work.context_tokens
        self.longest = max(self.longest, work.tokens)

    def remove(self, key: Key) -> None:
        work = self.residents.pop(key)
        self.tokens -= work.tokens
        self.kv_steps -= work.kv_steps
        self.context_tokens -= work.context_tokens
        if work.tokens >= self.longest:
            self.longest = max((other.tokens for other in self.residents.values()), default=0.0)

    def drain_seconds(self, shape: Shape) -> float:
        """Time to finish all residents."""
        return _drain(shape, self.longest, self.tokens, self.kv_steps)

    def drain_seconds_with(self, shape: Shape, work: Work) -> float:
        """The same with one resident more."""
        longest = max(self.longest, work.tokens)
        return _drain(shape, longest, self.tokens + work.tokens, self.kv_steps + work.kv_steps)

    def drain_seconds_without(self, shape: Shape, key: Key) -> float:
        """The same with one resident less."""
        work = self.residents[key]
        longest = self.longest
        if work.tokens >= longest:
            others = (other.tokens for name, other in self.residents.items() if name != key)
            longest = max(others, default=0.0)
        return _drain(shape, longest, self.tokens - work.tokens, self.kv_steps - work.kv_steps)


def _drain(shape: Shape, longest: float, tokens: float, kv_steps: float) -> float:
    cost = shape.decode
    return (cost.d + max(cost.b, cost.b0)) * longest + cost.c * tokens + cost.a * kv_steps


_IDLE = WorkerLoad()
"""Of a worker without residents; never changed."""


class LoadBook:
    """Loads by worker and generation, kept up to date by the router."""

    def __init__(self) -> None:
        self._loads: dict[tuple[str, int], WorkerLoad] = {}
        self._homes: dict[Key, tuple[str, int]] = {}

    def load(self, worker_id: str, generation: int) -> WorkerLoad:
        return self._loads.get((worker_id, generation), _IDLE)

    def settle(self, key: Key, worker_id: str, generation: int, work: Work) -> None:
        """A trajectory lives on this worker, with this much to do."""
        self.leave(key)
        home = self._homes[key] = (worker_id, generation)
        if home not in self._loads:
            self._loads[home] = WorkerLoad()
        self._loads[home].add(key, work)

    def update(self, key: Key, work: Work) -> None:
        """New expectations for a trajectory that may live somewhere."""
        home = self._homes.get(key)
        if home is not None:
            self._loads[home].remove(key)
            self._loads[home].add(key, work)

    def leave(self, key: Key) -> None:
        home = self._homes.pop(key, None)
        if home is not None:
            load = self._loads[home]
            load.remove(key)
            if not load.residents:
                del self._loads[home]
