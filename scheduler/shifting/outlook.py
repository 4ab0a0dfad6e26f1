"""What is still to come, by the forecasts of open attempts: for policies that act ahead of a queue.

An observer of one role. It keeps a forecast of each open attempt from when its last turn became ready
and lets it shrink by what a turn that decodes makes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.fleet import Key
from scheduler.policies import LengthEstimator
from scheduler.views import Phase, TrajectoryView


@dataclass(slots=True)
class _Open:
    tokens: float
    """Forecast to be sampled, from `since_t` on."""
    since_t: float
    phase: Phase


class Outlook:
    def __init__(self, estimator: LengthEstimator) -> None:
        self._estimator = estimator
        self._open: dict[Key, _Open] = {}

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        self._estimator.turn_ready(trajectory)
        mean = self._estimator.predict(trajectory).mean
        self._open[_key(trajectory)] = _Open(mean, trajectory.ready_t, Phase.WAITING)

    def placed(self, trajectory: TrajectoryView) -> None:
        self._estimator.placed(trajectory)
        self._open[_key(trajectory)].phase = Phase.DECODING

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        self._estimator.turn_finished(trajectory)
        self._open[_key(trajectory)].phase = Phase.RESTING

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        self._estimator.ended(trajectory, is_complete=is_complete)
        self._open.pop(_key(trajectory), None)

    def left(self, t: float, token_s: float) -> Iterator[float]:
        """Tokens that each open attempt still has to sample, when a step takes `token_s`."""
        for attempt in self._open.values():
            made = 0.0
            if attempt.phase is Phase.DECODING:
                made = (t - attempt.since_t) / token_s
            yield max(attempt.tokens - made, 0.1 * attempt.tokens)


class MeanLength:
    """Sampled tokens of attempts that came to their end, on average; an observer."""

    def __init__(self, *, guess: float = 500.0, guess_weight: float = 4.0) -> None:
        self._tokens = guess * guess_weight
        self._number = guess_weight

    @property
    def tokens(self) -> float:
        return self._tokens / self._number

    def state(self) -> dict[str, Any]:
        return {"tokens": self._tokens, "number": self._number}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._tokens, self._number = state["tokens"], state["number"]

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        pass

    def placed(self, trajectory: TrajectoryView) -> None:
        pass

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        self._tokens += trajectory.turn_tokens[-1]
        self._number += 1.0

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        pass


def _key(trajectory: TrajectoryView) -> Key:
    return trajectory.job, trajectory.trajectory_id
