"""How good forecasts were, judged when an attempt has ended by what was said at each of its turns.

`ForecastCheck` is an observer around an estimator: it asks for a forecast whenever a turn is ready,
before anything of that turn is known, and scores it at the attempt's end. Only attempts that came to
their end are scored, so while a run is young the scores speak of short attempts more than of long ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log2
from statistics import fmean

from scheduler.fleet import Key
from scheduler.policies import LengthEstimator
from scheduler.residual import Residual, bin_of
from scheduler.views import TrajectoryView

_LEAST_PROBABILITY = 1e-4
"""A forecast that called impossible what happened is charged as if it had said this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One forecast and what became of it."""

    trajectory_id: str
    turn: int
    forecast_tokens: float
    """Its median."""
    mean_tokens: float
    real_tokens: int
    rank: float
    """Forecast probability of less than the real tokens: spread evenly when forecasts are true."""
    log_loss: float
    """Minus log probability of the bin that came true, in nats."""

    @property
    def log2_error(self) -> float:
        """In doublings; below 0 when the forecast was too short."""
        return log2(max(1.0, self.forecast_tokens)) - log2(max(1, self.real_tokens))


class ForecastCheck:
    """An observer; pass it where the estimator itself would go."""

    def __init__(self, estimator: LengthEstimator) -> None:
        self._estimator = estimator
        self._said: dict[Key, list[tuple[int, int, Residual]]] = {}
        """Turn, tokens before it and forecast, of open attempts."""
        self.scored: list[Scored] = []

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        self._estimator.turn_ready(trajectory)
        said = self._said.setdefault((trajectory.job, trajectory.trajectory_id), [])
        if not said or said[-1][0] != trajectory.turn:
            residual = self._estimator.predict(trajectory)
            said.append((trajectory.turn, trajectory.tokens, residual))

    def placed(self, trajectory: TrajectoryView) -> None:
        self._estimator.placed(trajectory)

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        self._estimator.turn_finished(trajectory)

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        self._estimator.ended(trajectory, is_complete=is_complete)
        said = self._said.pop((trajectory.job, trajectory.trajectory_id), [])
        if is_complete:
            for turn, tokens_before, residual in said:
                real = trajectory.tokens - tokens_before
                self.scored.append(_score(trajectory.trajectory_id, turn, residual, real))


def _score(trajectory_id: str, turn: int, residual: Residual, real: int) -> Scored:
    right = [p for v, p in zip(residual.values, residual.probabilities, strict=True)
             if bin_of(int(v)) == bin_of(real)]  # fmt: skip
    return Scored(
        trajectory_id=trajectory_id,
        turn=turn,
        forecast_tokens=residual.quantile(0.5),
        mean_tokens=residual.mean,
        real_tokens=real,
        rank=residual.below(real),
        log_loss=-log(max(_LEAST_PROBABILITY, sum(right))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """What many scored forecasts come to."""

    num_forecasts: int
    log_loss: float
    log2_error: float
    """Mean distance in doublings between median and truth."""
    tail_recall: float | None
    """Of the longest tenth of real residuals, the share in the longest tenth by mean forecast."""
    calibration: tuple[tuple[float, float], ...]
    """Quantile, and the share of real residuals that lay below it; equal when forecasts are true."""


_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def accuracy_of(scored: Sequence[Scored]) -> Accuracy:
    """`scored` must not be empty."""
    return Accuracy(
        num_forecasts=len(scored),
        log_loss=fmean(one.log_loss for one in scored),
        log2_error=fmean(abs(one.log2_error) for one in scored),
        tail_recall=_tail_recall(scored),
        calibration=tuple(
            (q, sum(one.rank <= q for one in scored) / len(scored)) for q in _QUANTILES
        ),
    )


def _tail_recall(scored: Sequence[Scored]) -> float | None:
    num_tail = len(scored) // 10
    if num_tail == 0:
        return None
    places = range(len(scored))
    real = sorted(places, key=lambda i: (-scored[i].real_tokens, i))[:num_tail]
    forecast = sorted(places, key=lambda i: (-scored[i].mean_tokens, i))
    return len(set(real) & set(forecast[:num_tail])) / num_tail


def worst_attempts(scored: Sequence[Scored], number: int) -> list[Scored]:
    """Of each attempt its furthest forecast; the attempts furthest off first."""
    worst: dict[str, Scored] = {}
    for one in scored:
        known = worst.get(one.trajectory_id)
        if known is None or abs(one.log2_error) > abs(known.log2_error):
            worst[one.trajectory_id] = one
    return sorted(worst.values(), key=lambda one: -abs(one.log2_error))[:number]
