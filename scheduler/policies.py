"""The questions a policy answers. Small classes behind protocols, chosen once when wiring.

Policies are synchronous and deterministic: no clock, no randomness of their own, no I/O. Baselines
and ours answer the same questions, so they are compared and swapped freely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scheduler.decisions import Duty
from scheduler.residual import Residual
from scheduler.views import AdmissionView, ShiftView, TrajectoryView, WorkerView


class RoutePolicy(Protocol):
    """Which worker serves a turn, and who goes first when slots are scarce."""

    def lane(self, trajectory: TrajectoryView, workers: Sequence[WorkerView]) -> str:
        """The queue a ready turn waits in. Inside a lane nobody overtakes its head.

        `workers` are all that serve the trajectory's role and job, full ones too.
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


class PrewarmPolicy(Protocol):
    """Whether to compute a context elsewhere while its trajectory does not need a worker."""

    def prewarm(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        """A tool of the trajectory has started. Where it will most likely go next, or None."""
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


class Learner(Protocol):
    """Learns as a run goes on, and can go on from where another one was."""

    def state(self) -> dict[str, Any]:
        """What has been learned, as plain data for a checkpoint. What is known of attempts that
        are still open is not in it."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`, also after JSON, for one that was made the same way."""
        ...


class LengthEstimator(Observer, Protocol):
    """How many tokens an attempt still has to sample."""

    def predict(self, trajectory: TrajectoryView) -> Residual: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftPlan:
    """Moves that begin together, and shifts whose reason is gone, both by worker."""

    moves: Mapping[str, Duty] = field(default_factory=dict)
    cancels: tuple[str, ...] = ()


class ShiftPolicy(Protocol):
    """Which worker should serve what. It is an observer of trajectories too, when it wants to be.

    The scheduler begins a plan as a whole or not at all: not when an accelerator is owned by a
    worker that stays, a training worker would leave during a step, or a role that has work
    would be left with no worker in service or on its way.
    """

    num_weighed: int
    """Candidate plans set against each other so far: what planning takes grows with them."""

    def plan(self, view: ShiftView) -> ShiftPlan | None:
        """Asked on every tick, and when a batch, a step or a worker has changed."""
        ...

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        """Whether a turn that decodes on a worker about to leave ends there, and is not requeued.

        Cheaper when less is left than its context takes to be computed elsewhere.
        """
        ...
