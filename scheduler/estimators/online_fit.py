"""Linear models that learn one observation at a time: least squares and logistic.

Both keep a Gaussian over their weights. An observation moves the mean by the usual Kalman step
(for the logistic model on its local quadratic), which learns from tens of observations where
gradient steps need thousands, and has no rate to tune. Forgetting widens the Gaussian again, never
beyond what was believed before the first observation, so a feature that is seldom on does not drift
off. Plain floats in a fixed order: the same log gives the same weights on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, sqrt
from typing import Any

Vector = Sequence[float]


class _Gaussian:
    def __init__(self, mean: Vector, deviation: float) -> None:
        """`deviation`: how far from `mean` a weight may be, before anything was seen."""
        self.mean = list(mean)
        self._prior = deviation * deviation
        size = range(len(self.mean))
        self._covariance = [[self._prior if i == j else 0.0 for j in size] for i in size]

    def dot(self, x: Vector) -> float:
        return sum(weight * value for weight, value in zip(self.mean, x, strict=True))

    def observe(self, x: Vector, error: float, precision: float) -> None:
        """`error`: truth minus forecast; `precision`: of the observation's noise."""
        moved = [sum(c * v for c, v in zip(row, x, strict=True)) for row in self._covariance]
        noise = 1.0 / precision + sum(m * v for m, v in zip(moved, x, strict=True))
        gain = [m / noise for m in moved]
        for i, g in enumerate(gain):
            self.mean[i] += g * error
            row = self._covariance[i]
            self._covariance[i] = [c - g * m for c, m in zip(row, moved, strict=True)]

    def widen(self, factor: float) -> None:
        """Believe what was learned less by this factor of variance."""
        scale = [
            sqrt(min(factor, self._prior / max(row[i], 1e-12)))
            for i, row in enumerate(self._covariance)
        ]
        self._covariance = [
            [c * s * other for c, other in zip(row, scale, strict=True)]
            for row, s in zip(self._covariance, scale, strict=True)
        ]

    def state(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "covariance": [list(row) for row in self._covariance]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.mean = list(state["mean"])
        self._covariance = [list(row) for row in state["covariance"]]


class OnlineLogistic(_Gaussian):
    """The chance of a yes."""

    def learn(self, x: Vector, is_yes: bool) -> None:
        chance = sigmoid(self.dot(x))
        curvature = max(chance * (1.0 - chance), 1e-3)
        self.observe(x, ((1.0 if is_yes else 0.0) - chance) / curvature, curvature)


class OnlineLinear(_Gaussian):
    """A number and the spread around it.

    The Gaussian is in units of the spread, so that learning goes on at its pace when errors
    suddenly grow: they may be a change and not noise.
    """

    def __init__(self, mean: Vector, deviation: float, *, spread: float) -> None:
        super().__init__(mean, deviation / spread)
        self._squares = 4.0 * spread * spread
        self._count = 4.0

    @property
    def variance(self) -> float:
        return self._squares / self._count

    def learn(self, x: Vector, value: float) -> None:
        error = value - self.dot(x)
        self._squares += error * error
        self._count += 1.0
        self.observe(x, error, 1.0)

    def widen(self, factor: float) -> None:
        super().widen(factor)
        if self._count > 4.0:
            self._squares /= factor
            self._count /= factor

    def state(self) -> dict[str, Any]:
        return {**super().state(), "squares": self._squares, "count": self._count}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._squares, self._count = state["squares"], state["count"]


def sigmoid(log_odds: float) -> float:
    if log_odds >= 0:
        return 1.0 / (1.0 + exp(-log_odds))
    grown = exp(log_odds)
    return grown / (1.0 + grown)
