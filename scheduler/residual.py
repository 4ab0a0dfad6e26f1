"""How much is left of an attempt: a distribution over tokens still to be sampled.

Estimators that count use one grid of doubling bins, so that what two of them say can be compared
and pooled bin by bin. A forecast is a distribution and not a mean: lengths are so skewed that the
mean of a mixture of short and long ones describes neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Self

_FIRST_EXPONENT = 5
NUM_BINS = 11
"""Residuals under 2^5 tokens share the first bin, those of 2^15 and more the last."""

BIN_EDGES: tuple[int, ...] = tuple(2 ** (_FIRST_EXPONENT + b) for b in range(NUM_BINS - 1))
"""The upper edge of each bin but the last, which has none."""

_BIN_VALUES: tuple[float, ...] = (
    20.0,
    *(1.44 * 2 ** (_FIRST_EXPONENT + b) for b in range(NUM_BINS - 1)),
)
"""The mean of a bin whose tokens are spread evenly in their logarithm."""


def bin_of(tokens: int) -> int:
    """The bin that holds a residual of so many tokens."""
    return min(max(0, int(tokens).bit_length() - _FIRST_EXPONENT), NUM_BINS - 1)


def hazards_of(probabilities: Sequence[float]) -> list[float]:
    """The chance of ending in each bin when the bins before are survived; 1 when none is left."""
    left = sum(probabilities)
    hazards = []
    for probability in probabilities:
        hazards.append(min(1.0, probability / left) if left > 1e-12 else 1.0)
        left -= probability
    return hazards


@dataclass(frozen=True, slots=True)
class Residual:
    """Values in rising order and their probabilities."""

    values: tuple[float, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def certain(cls, tokens: float) -> Self:
        return cls((float(tokens),), (1.0,))

    @classmethod
    def from_hazards(cls, hazards: Sequence[float]) -> Self:
        """From the chance, bin by bin, of ending in it when the bins before are survived."""
        probabilities = []
        survival = 1.0
        for hazard in hazards[:-1]:
            probabilities.append(survival * hazard)
            survival *= 1.0 - hazard
        probabilities.append(survival)
        return cls(_BIN_VALUES, tuple(probabilities))

    @classmethod
    def from_bins(cls, probabilities: Sequence[float]) -> Self:
        """From the probability of each bin."""
        return cls(_BIN_VALUES, tuple(probabilities))

    @property
    def mean(self) -> float:
        return sum(v * p for v, p in zip(self.values, self.probabilities, strict=True))

    @property
    def second_moment(self) -> float:
        return sum(v * v * p for v, p in zip(self.values, self.probabilities, strict=True))

    def tail(self, tokens: float) -> float:
        """Probability of more than this."""
        pairs = zip(self.values, self.probabilities, strict=True)
        return sum(p for v, p in pairs if v > tokens)

    def below(self, tokens: float) -> float:
        """Probability of less than this; inside a bin it is spread evenly in the logarithm."""
        if len(self.values) != NUM_BINS:
            return sum(
                p for v, p in zip(self.values, self.probabilities, strict=True) if v < tokens
            )
        at = bin_of(int(tokens))
        low = log2(BIN_EDGES[at - 1]) if at else 0.0
        share = min(
            1.0, max(0.0, (log2(max(1.0, tokens)) - low) / (1.0 if at else _FIRST_EXPONENT))
        )
        return sum(self.probabilities[:at]) + share * self.probabilities[at]

    def quantile(self, q: float) -> float:
        """The smallest value that is not exceeded with probability `q` or more."""
        reached = 0.0
        for value, probability in zip(self.values, self.probabilities, strict=True):
            reached += probability
            if reached >= q - 1e-12:
                return value
        return self.values[-1]
