"""Estimators by name: what a file can choose from, and what a checkpoint keeps of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from scheduler.estimators.context_tree import (
    Chain,
    ContextTree,
    elapsed,
    nothing,
    siblings,
    tool_history,
)
from scheduler.estimators.hazard import HazardModel
from scheduler.estimators.pooled import PooledTrees
from scheduler.estimators.sibling_posterior import SiblingPosterior
from scheduler.policies import LengthEstimator

DEFAULT = "pooled"


class Learner(LengthEstimator, Protocol):
    """An estimator that learns as a run goes on, and can go on from where another one was."""

    def state(self) -> dict[str, Any]:
        """What has been learned, as plain data for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`, for an estimator made the same way."""
        ...


def make_estimator(
    name: str = DEFAULT, *, half_life: float = 2000.0, learns_from_running: bool = True
) -> Learner:
    """`half_life` in ended attempts. `learns_from_running` is for trees: the hazard model and the
    posterior cannot do otherwise."""

    def tree(chain: Chain) -> ContextTree:
        return ContextTree(chain, half_life=half_life, learns_from_running=learns_from_running)

    match name:
        case "constant":
            return tree(nothing)
        case "elapsed":
            return tree(elapsed)
        case "history":
            return tree(tool_history)
        case "siblings":
            return tree(siblings)
        case "pooled":
            return PooledTrees(half_life=half_life, learns_from_running=learns_from_running)
        case "hazard":
            return HazardModel(half_life=half_life)
        case "posterior":
            return SiblingPosterior(half_life=half_life)
        case "combined":
            return HazardModel(half_life=half_life, siblings=SiblingPosterior(half_life=half_life))
    raise ValueError(f"estimator is {name!r}, known are {sorted(NAMES)}")


NAMES = (
    "constant", "elapsed", "history", "siblings", "pooled", "hazard", "posterior", "combined",
)  # fmt: skip
