"""Observed over predicted seconds of one kind of work, and how far predictions were off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

_MEMORY = 100.0
"""Observations after which an old one weighs 1/e."""
_TRUST = 8.0
"""Observations that a model measured beforehand is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeReport:
    """Errors are mean distances between prediction and observation, as shares of the latter."""

    num_observed: int
    scale: float
    """Observed over predicted, lately."""
    error_before: float | None
    """Of the model as it was given; None where there was none."""
    error: float | None
    """Of the model times its scale of that moment; None before two observations were made."""


@dataclass(slots=True)
class Gauge:
    is_guess: bool = False
    """Predictions are in arbitrary units: the first observation sets the scale."""
    observed_s: float = 0.0
    predicted_s: float = 0.0
    """Both fading; their quotient is trusted as far as there are observations."""
    weight: float = 0.0
    num_observed: int = 0
    num_judged: int = 0
    error_before: float = 0.0
    error: float = 0.0
    """Sums over observations."""

    @property
    def scale(self) -> float:
        trust = 0.0 if self.is_guess or not self.weight else _TRUST * self.predicted_s / self.weight
        total = self.predicted_s + trust
        return (self.observed_s + trust) / total if total else 1.0

    def see(self, observed_s: float, predicted_s: float) -> None:
        """First judge what would have been said, then learn."""
        if self.num_observed or not self.is_guess:
            self.error += abs(self.scale * predicted_s - observed_s) / observed_s
            self.num_judged += 1
        self.error_before += abs(predicted_s - observed_s) / observed_s
        fade = 1.0 - 1.0 / _MEMORY
        self.observed_s = fade * self.observed_s + observed_s
        self.predicted_s = fade * self.predicted_s + predicted_s
        self.weight = fade * self.weight + 1.0
        self.num_observed += 1

    def report(self) -> GaugeReport:
        return GaugeReport(
            num_observed=self.num_observed,
            scale=self.scale,
            error_before=None if self.is_guess else self.error_before / self.num_observed,
            error=self.error / self.num_judged if self.num_judged else None,
        )

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        return cls(**state)


def mean_error(reports: Mapping[str, GaugeReport]) -> float:
    """Over all kinds, each by how often it was observed; 0 where nothing was."""
    judged = [(r.num_observed, r.error) for r in reports.values() if r.error is not None]
    total = sum(number for number, _ in judged)
    return sum(number * error for number, error in judged) / total if total else 0.0
