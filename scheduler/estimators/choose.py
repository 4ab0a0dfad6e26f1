"""Estimators by name: what a file can choose from, and what a checkpoint keeps of them."""

from __future__ import annotations

from typing import Protocol

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
from scheduler.policies import Learner, LengthEstimator

DEFAULT = "pooled"


class LearningEstimator(LengthEstimator, Learner, Protocol):
    """An estimator whose knowledge a checkpoint keeps."""


def make_estimator(
    name: str = DEFAULT,
    *,
    half_life: float = 2000.0,
    learns_from_running: bool = True,
    backs_off: bool = True,
) -> LearningEstimator:
    """`half_life` in ended attempts. `learns_from_running` and `backs_off` are for trees: the hazard
    model and the posterior cannot do otherwise."""

    def tree(chain: Chain) -> ContextTree:
        return ContextTree(
            chain,
            half_life=half_life,
            learns_from_running=learns_from_running,
            backs_off=backs_off,
        )

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
            return PooledTrees(
                half_life=half_life, learns_from_running=learns_from_running, backs_off=backs_off
            )
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
