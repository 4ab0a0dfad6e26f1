"""The questions a policy answers. Small classes behind protocols, chosen once when wiring.

Policies are synchronous and deterministic: no clock, no randomness of their own, no I/O. Baselines
and ours answer the same questions, so they are compared and swapped freely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from scheduler.residual import Residual
from scheduler.views import AdmissionView, TrajectoryView, WorkerView


class RoutePolicy(Protocol):
    """Which worker serves a turn, and who goes first when slots are scarce."""

    def lane(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> str:
        """The queue a ready turn waits in. Inside a lane nobody overtakes its head.

        `workers` are all that serve rollout for the trajectory's job, full ones too.
        """
        ...

    def order(self, trajectory: TrajectoryView) -> float:
        """The place in its lane: smaller goes first, ties go by arrival."""
        ...

    def choose(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        """A worker with a free slot, or None to wait until something changes."""
        ...


class AdmissionPolicy(Protocol):
    """How many groups may start now, and when those still running are not needed any more."""

    def admit(self, counters: AdmissionView) -> int: ...

    def cuts(self, counters: AdmissionView) -> bool:
        """Whether to give up all running groups."""
        ...


class Observer(Protocol):
    """Learns from what happens: estimators, load books. Told in order, before decisions."""

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        """A turn waits; the tools of the turn before have returned."""
        ...

    def placed(self, trajectory: TrajectoryView) -> None:
        """A turn got its slot; `home_id` is the worker."""
        ...

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        """A turn has ended; its tools have not run yet."""
        ...

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        """An attempt is over; `is_complete` is False when it was lost on the way."""
        ...


class LengthEstimator(Observer, Protocol):
    """How many tokens an attempt still has to sample."""

    def predict(self, trajectory: TrajectoryView) -> Residual: ...
