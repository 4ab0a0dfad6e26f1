"""How long a group's attempts are, from those that have finished and those still running.

The log of an attempt's tokens is normal around its group's level, and levels are normal around that
of all groups. Finished siblings are exact observations of the level; a running one says that its
length is more than what it has sampled so far (a right-censored observation; a few Newton steps on
its likelihood). The attempt's own tokens condition the forecast at the end.
With one group's attempts at different stages nothing here waits for a first finish: four siblings
that all still run after 10 000 tokens tell as much as one that ended there.

This is Seer's rule (longest finished sibling, else the longest possible) made soft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import erf, exp, log, pi, sqrt
from typing import Any

from scheduler.residual import BIN_EDGES, Residual, hazards_of
from scheduler.views import TrajectoryView

_STEPS = 3
"""Of Newton's method."""


@dataclass(slots=True)
class _Group:
    running: dict[str, int] = field(default_factory=dict)
    """Tokens so far, by attempt."""
    finished: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Population:
    """Of all groups, faded: level, spread of levels, spread within a group."""

    weight: float = 1.0
    level: float = log(1000.0)
    between: float = 1.0
    """Variance of group means around the level."""
    freedom: float = 1.0
    within: float = 0.25

    def add(self, logs: Sequence[float], keep: float) -> None:
        """A group has ended; what was known before fades by `keep`."""
        mean = sum(logs) / len(logs)
        self.weight = self.weight * keep + 1.0
        share = 1.0 / self.weight
        shift = mean - self.level
        self.level += share * shift
        self.between += share * (shift * shift * (1.0 - share) - self.between)
        freedom = len(logs) - 1.0
        if freedom > 0:
            squares = sum((one - mean) ** 2 for one in logs)
            self.freedom = self.freedom * keep + freedom
            self.within += (squares - freedom * self.within) / self.freedom


class SiblingPosterior:
    """A `LengthEstimator`."""

    def __init__(self, *, half_life: float = 2000.0) -> None:
        """`half_life` in ended attempts."""
        self._fade = 0.5 ** (1.0 / half_life)
        self._all = _Population()
        self._groups: dict[tuple[str, str], _Group] = {}

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        self._group(trajectory).running[trajectory.trajectory_id] = trajectory.tokens

    def placed(self, trajectory: TrajectoryView) -> None:
        """Placement tells nothing of length."""

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        self._group(trajectory).running[trajectory.trajectory_id] = trajectory.tokens

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        key = (trajectory.job, trajectory.group_id)
        group = self._group(trajectory)
        group.running.pop(trajectory.trajectory_id, None)
        if is_complete:
            group.finished.append(trajectory.tokens)
        if not group.running:
            del self._groups[key]
            if group.finished:
                logs = [log(max(1, tokens)) for tokens in group.finished]
                self._all.add(logs, self._fade ** len(logs))

    def predict(self, trajectory: TrajectoryView) -> Residual:
        return Residual.from_hazards(self.hazards(trajectory))

    def hazards(self, trajectory: TrajectoryView) -> list[float]:
        """The chance of ending in each bin of the residual, given that it is reached."""
        level, variance = self._posterior(trajectory)
        return _residual_hazards(level, variance + self._all.within, trajectory.tokens)

    def base_hazards(self, trajectory: TrajectoryView) -> list[float]:
        """The same for an attempt of an unknown group."""
        everyone = self._all
        variance = _level_variance(everyone) + everyone.within
        return _residual_hazards(everyone.level, variance, trajectory.tokens)

    def shift(self, trajectory: TrajectoryView) -> float:
        """How much longer than usual the group's other members are, in logarithms; 0: unknown."""
        return self._posterior(trajectory)[0] - self._all.level

    def state(self) -> dict[str, Any]:
        """What has been learned of all groups, as plain data for a checkpoint."""
        everyone = self._all
        return {
            "weight": everyone.weight,
            "level": everyone.level,
            "between": everyone.between,
            "freedom": everyone.freedom,
            "within": everyone.within,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self._all = _Population(**state)

    def _group(self, trajectory: TrajectoryView) -> _Group:
        return self._groups.setdefault((trajectory.job, trajectory.group_id), _Group())

    def _posterior(self, trajectory: TrajectoryView) -> tuple[float, float]:
        """Mean and variance of the group's level, the attempt itself left out."""
        everyone = self._all
        group = self._groups.get((trajectory.job, trajectory.group_id), _NOBODY)
        exact = [log(max(1, tokens)) for tokens in trajectory.siblings_finished]
        floors = [
            log(tokens)
            for name, tokens in group.running.items()
            if tokens > 0 and name != trajectory.trajectory_id
        ]
        prior_precision = 1.0 / _level_variance(everyone)
        deviation = sqrt(everyone.within)
        level = everyone.level
        known = sum(exact) / everyone.within + everyone.level * prior_precision
        precision = prior_precision + len(exact) / everyone.within
        for _ in range(_STEPS if floors else 1):
            weighted, total = known, precision
            for floor in floors:
                z = (floor - level) / deviation
                beyond = _mean_beyond(z)
                weight = beyond * (beyond - z) / everyone.within
                weighted += weight * (level + deviation / (beyond - z))
                total += weight
            level = weighted / total
        return level, 1.0 / total


_NOBODY = _Group()


def _level_variance(everyone: _Population) -> float:
    """Group means vary by their noise too; taken as that of a mean of eight."""
    return max(0.02, everyone.between - everyone.within / 8.0)


def _mean_beyond(z: float) -> float:
    """Mean of a standard normal beyond `z`."""
    if z > 5.0:
        return z + 1.0 / z
    return exp(-z * z / 2) / sqrt(2 * pi) / _above(z)


def _above(z: float) -> float:
    return max(1e-12, 0.5 * (1.0 - erf(z / sqrt(2.0))))


def _residual_hazards(level: float, variance: float, tokens: int) -> list[float]:
    """Of a log-normal length, given that it is more than `tokens`."""
    deviation = sqrt(variance)
    start = _above((log(tokens) - level) / deviation) if tokens > 0 else 1.0
    left = start
    bins = []
    for edge in BIN_EDGES:
        beyond = min(left, _above((log(tokens + edge) - level) / deviation))
        bins.append((left - beyond) / start)
        left = beyond
    bins.append(left / start)
    return hazards_of(bins)
