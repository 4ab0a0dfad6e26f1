"""What the cluster asks of a simulated worker, and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from scheduler.costs import Shape

Key = tuple[str, str]


@dataclass(slots=True)
class Request:
    """A turn: continue a context of `context_tokens` by `new_tokens`.

    With no new tokens it is no turn: the context is computed and rests, and nobody is told.
    """

    key: Key
    context_tokens: int
    new_tokens: int


@dataclass(slots=True)
class WorkerStats:
    """What a worker has done since it was made."""

    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decoded_tokens: int = 0
    prefilled_tokens: int = 0
    preemptions: int = 0
    evictions: int = 0


class DecodeWorker(Protocol):
    """A continuous batch that moves in actions: a prefill, or whole decode steps.

    Between two actions it is at a boundary, and only there does the batch change. A driver calls
    `advance` when `next_t` has come, hands over what arrived, then calls `plan`.
    """

    shape: Shape
    stats: WorkerStats

    def add(self, t: float, request: Request) -> None:
        """Queue a turn; it joins at the next boundary, when memory allows."""
        ...

    def abort(self, t: float, key: Key) -> int:
        """Give a turn up; returns its tokens of finished steps. It leaves at the next boundary."""
        ...

    def forget(self, key: Key) -> None:
        """Drop the cached context of a trajectory that ended or went elsewhere."""
        ...

    def next_t(self) -> float:
        """When the action in progress ends; infinite when idle."""
        ...

    def advance(self, t: float) -> list[Key]:
        """End the action that ends at `t`; the turns that are complete, in order of joining."""
        ...

    def plan(self, t: float) -> None:
        """At a boundary, begin the next action; otherwise nothing."""
        ...
