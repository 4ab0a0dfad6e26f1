"""The back-off tree: the finest context seen often enough decides, shrunk towards coarser ones.

A `Chain` names the contexts of an attempt from coarse to fine. Libra's prefix tree keys on the whole
history from the start and so sees most histories once; suffix keys (the last result, the streak)
repeat, and shrinkage to the parent lets a rare context say only as much as it has seen. Every turn
of every attempt is a decision point that is watched from then on, in running attempts too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from math import log2
from typing import Any

from scheduler.estimators.history import (
    failure_streak,
    is_repeating,
    last_status,
    size_class,
    tokens_class,
)
from scheduler.estimators.survival import Fading, SurvivalNode
from scheduler.residual import NUM_BINS, Residual, bin_of
from scheduler.views import TrajectoryView

Chain = Callable[[TrajectoryView], tuple[tuple[Hashable, ...], ...]]
"""Keys of one attempt's contexts, coarse to fine. The root, which is everything, comes before."""

_NAIVE_HAZARD = 0.25
"""What the root believes of every bin before it has seen anything, ..."""
_NAIVE_COUNTS = 2.0
"""... and how many counts that is worth."""


def nothing(trajectory: TrajectoryView) -> tuple[tuple[Hashable, ...], ...]:
    """Every attempt is like every other."""
    return ()


def elapsed(trajectory: TrajectoryView) -> tuple[tuple[Hashable, ...], ...]:
    """Only what it has sampled so far counts: the forecast behind multi-level feedback queues."""
    return ((tokens_class(trajectory.tokens),),)


def tool_history(trajectory: TrajectoryView) -> tuple[tuple[Hashable, ...], ...]:
    """How far it is, and what its tools have answered lately."""
    family = trajectory.task_family
    tokens = tokens_class(trajectory.tokens)
    streak = min(failure_streak(trajectory), 4)
    status = last_status(trajectory)
    return (
        (family,),
        (family, tokens),
        (family, tokens, streak),
        (family, tokens, streak, status, is_repeating(trajectory)),
        (family, tokens, streak, status, is_repeating(trajectory), size_class(trajectory)),
    )


def siblings(trajectory: TrajectoryView) -> tuple[tuple[Hashable, ...], ...]:
    """How long its finished siblings were, and whether it has outlived that."""
    finished = trajectory.siblings_finished
    if not finished:
        return ()
    mean_class = round(2 * sum(log2(max(1, tokens)) for tokens in finished) / len(finished))
    tokens = tokens_class(trajectory.tokens)
    return (
        (mean_class // 2, tokens),
        (mean_class, min(len(finished), 4) // 2, tokens),
    )


@dataclass(slots=True)
class _DecisionPoint:
    tokens: int
    """Sampled before it."""
    nodes: tuple[SurvivalNode, ...]
    next_bin: int = 0
    """The first bin whose survival has not been counted yet."""


@dataclass(slots=True)
class _Watched:
    points: list[_DecisionPoint] = field(default_factory=list)


class ContextTree:
    """A `LengthEstimator` over one chain of contexts."""

    def __init__(
        self,
        chain: Chain,
        *,
        half_life: float = 2000.0,
        strength: float = 120.0,
        learns_from_running: bool = True,
        backs_off: bool = True,
    ) -> None:
        """`strength`: counts that the coarser context is worth to a finer one. Without back-off the
        finest context speaks alone, however seldom it was seen; that is for comparisons."""
        self._chain = chain
        self._backs_off = backs_off
        self._strength = strength
        self._learns_from_running = learns_from_running
        self._fading = Fading(half_life)
        self._root = SurvivalNode()
        self._nodes: dict[Hashable, SurvivalNode] = {}
        self._open: dict[tuple[str, str], _Watched] = {}

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        watched = self._open.setdefault((trajectory.job, trajectory.trajectory_id), _Watched())
        watched.points.append(_DecisionPoint(trajectory.tokens, self._path(trajectory)))

    def placed(self, trajectory: TrajectoryView) -> None:
        """Placement tells nothing of length."""

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        if self._learns_from_running:
            watched = self._open[trajectory.job, trajectory.trajectory_id]
            self._count_survivals(watched, trajectory.tokens)

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        watched = self._open.pop((trajectory.job, trajectory.trajectory_id), None)
        if watched is None or not is_complete:
            return
        self._count_survivals(watched, trajectory.tokens)
        weight = self._fading.weight
        for point in watched.points:
            last = bin_of(trajectory.tokens - point.tokens)
            for node in point.nodes:
                node.ended[last] += weight
                node.entered[last] += weight
        if self._fading.one_ended():
            self._rescale()

    def hazards(self, trajectory: TrajectoryView) -> list[float]:
        """The chance of ending in each bin of the residual, given that it is reached."""
        hazards = self._root.blend([_NAIVE_HAZARD] * NUM_BINS, _NAIVE_COUNTS)
        keys = self._chain(trajectory)
        if not self._backs_off and keys:
            finest = self._nodes.get(keys[-1], SurvivalNode())
            weight = _NAIVE_COUNTS * self._fading.weight
            return finest.blend([_NAIVE_HAZARD] * NUM_BINS, weight)
        for key in keys:
            node = self._nodes.get(key)
            if node is None:
                break
            hazards = node.blend(hazards, self._strength * self._fading.weight)
        return hazards

    def base_hazards(self) -> list[float]:
        """The same without any context."""
        return self._root.blend([_NAIVE_HAZARD] * NUM_BINS, _NAIVE_COUNTS)

    def predict(self, trajectory: TrajectoryView) -> Residual:
        return Residual.from_hazards(self.hazards(trajectory))

    def state(self) -> dict[str, Any]:
        """What has been learned, as plain data for a checkpoint. Open attempts are not in it: their
        trees begin again with the turns they still have."""
        return {
            "weight": self._fading.weight,
            "root": self._root.state(),
            "nodes": [[key, *node.state()] for key, node in self._nodes.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`, for an estimator with the same chain."""
        self._fading.weight = state["weight"]
        self._root = SurvivalNode.from_state(*state["root"])
        self._nodes = {
            tuple(key): SurvivalNode.from_state(*saved) for key, *saved in state["nodes"]
        }

    def _path(self, trajectory: TrajectoryView) -> tuple[SurvivalNode, ...]:
        nodes = [self._nodes.setdefault(key, SurvivalNode()) for key in self._chain(trajectory)]
        return (self._root, *nodes)

    def _count_survivals(self, watched: _Watched, tokens: int) -> None:
        weight = self._fading.weight
        for point in watched.points:
            reached = bin_of(tokens - point.tokens)
            while point.next_bin < reached:
                for node in point.nodes:
                    node.entered[point.next_bin] += weight
                point.next_bin += 1

    def _rescale(self) -> None:
        for node in (self._root, *self._nodes.values()):
            node.ended = [count / self._fading.weight for count in node.ended]
            node.entered = [count / self._fading.weight for count in node.entered]
        self._fading.rescaled()
