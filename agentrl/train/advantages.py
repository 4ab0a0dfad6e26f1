"""Turns the rewards of one group into advantages: how much better each attempt was than its siblings.

Each algorithm is a small class, chosen once from the `train.advantage` section. Everything is
float64, and deviations are taken from the centred rewards, so that rewards which differ in the
sixth digit give the same advantages wherever they lie.

Invariants
- A group whose rewards are all equal, a group of one included, has no signal: `has_signal` says
  so, its advantages are exactly 0, and `zero_variance` of the section decides what becomes of it.
- The advantages of a group sum to 0, up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from agentrl.config.sections import DrGrpoAdvantage, GrpoAdvantage, RlooAdvantage

Rewards = NDArray[np.float64]
"""One number an attempt, of one group, all finite."""


class Advantage(Protocol):
    """An algorithm. It is asked only about groups with a signal, so of two or more."""

    def __call__(self, rewards: Rewards, /) -> NDArray[np.float64]: ...


@dataclass(frozen=True, slots=True)
class Grpo:
    """(reward - mean) / (sample standard deviation + epsilon)."""

    epsilon: float

    def __call__(self, rewards: Rewards, /) -> NDArray[np.float64]:
        centred = rewards - rewards.mean()
        deviation = np.sqrt(np.square(centred).sum() / (len(rewards) - 1))
        return np.asarray(centred / (deviation + self.epsilon))


@dataclass(frozen=True, slots=True)
class DrGrpo:
    """reward - mean. Leaves out the division that favours groups with little spread."""

    def __call__(self, rewards: Rewards, /) -> NDArray[np.float64]:
        return np.asarray(rewards - rewards.mean())


@dataclass(frozen=True, slots=True)
class Rloo:
    """reward - mean of the others, which is the centred reward times n / (n - 1)."""

    def __call__(self, rewards: Rewards, /) -> NDArray[np.float64]:
        num_others = len(rewards) - 1
        return np.asarray((rewards - rewards.mean()) * (len(rewards) / num_others))


def make_advantage(section: GrpoAdvantage | DrGrpoAdvantage | RlooAdvantage) -> Advantage:
    match section:
        case GrpoAdvantage():
            return Grpo(section.epsilon)
        case DrGrpoAdvantage():
            return DrGrpo()
        case RlooAdvantage():
            return Rloo()
    assert_never(section)


def has_signal(rewards: Rewards) -> bool:
    """Whether any attempt did better than another; never true of a group of one."""
    return len(rewards) > 1 and bool(rewards.min() < rewards.max())


def group_advantages(advantage: Advantage, rewards: Rewards) -> NDArray[np.float64]:
    """Advantages of one group; zeros when it has no signal."""
    assert np.isfinite(rewards).all(), "an unscored trajectory reached the advantages"
    return advantage(rewards) if has_signal(rewards) else np.zeros_like(rewards)
