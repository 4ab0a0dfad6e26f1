"""The turn-level hazard model: will this turn be the last, and how long will it be?

Two small models learn online, per task family: the chance that a turn is the last one (logistic) and
the log of its tokens (linear, so tokens are log-normal). Each turn that is followed by another is a
complete observation of "not the last", made while the attempt runs: censoring needs no treatment, and
each turn teaches, not each attempt. The residual is composed forward: the chance of ending with
each later turn, and the tokens until then.

Facts that last (turn, tokens, how often tools failed so far, repetition) stay as they are on the way
forward; the newest result fades to what is usual, since it says little of the turn after next.

With a `SiblingPosterior` beside it, how much longer than usual an attempt's group is becomes one more
lasting fact. That is the combined estimator: the models learn what such a shift is worth, where
multiplying two forecasts would count twice what both have seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import erf, exp, log, log1p, sqrt
from typing import Any

from scheduler.estimators.history import failure_streak, is_repeating
from scheduler.estimators.online_fit import OnlineLinear, OnlineLogistic, sigmoid
from scheduler.estimators.sibling_posterior import SiblingPosterior
from scheduler.events import ToolStatus
from scheduler.residual import BIN_EDGES, NUM_BINS, Residual, hazards_of
from scheduler.views import TrajectoryView

_LASTING = 7
"""The first features last on the way forward, the rest fade ..."""
_FADE = 0.7
"""... by this factor a turn."""
_MOST_TURNS = 400
_LOG_EDGES = tuple(log(edge) for edge in BIN_EDGES)


def features(trajectory: TrajectoryView, group_shift: float = 0.0) -> tuple[float, ...]:
    """Of a turn that is ready. The second and third are turn and tokens; see `_walk`."""
    tools = trajectory.tools
    failed = sum(fact.status is not ToolStatus.OK for fact in tools)
    turns = trajectory.turn_tokens
    mean_log = sum(log1p(tokens) for tokens in turns) / len(turns) if turns else 6.0
    last = tools[-1] if tools else None
    return (
        1.0,
        log1p(trajectory.turn),
        log1p(trajectory.tokens / 100.0),
        (failed + 0.5) / (len(tools) + 2.0),
        float(is_repeating(trajectory)),
        (mean_log - 6.0) * min(len(turns), 4) / 4.0,
        group_shift,
        min(failure_streak(trajectory), 4) / 4.0,
        float(last is not None and last.status is ToolStatus.ERROR),
        float(last is not None and last.status is ToolStatus.TIMEOUT),
        log1p(last.size_tokens) / 8.0 if last is not None else 0.0,
    )


_NUM_FEATURES = 11


class _Family:
    """The two models of one task family, and what its features usually are."""

    def __init__(self) -> None:
        self.stops = OnlineLogistic([-1.0] + [0.0] * (_NUM_FEATURES - 1), 1.5)
        self.log_tokens = OnlineLinear([5.5] + [0.0] * (_NUM_FEATURES - 1), 1.5, spread=0.8)
        self.usual = [0.0] * _NUM_FEATURES
        self.seen = 0.0

    def see(self, x: tuple[float, ...]) -> None:
        self.seen = min(self.seen + 1.0, 2000.0)
        self.usual = [u + (v - u) / self.seen for u, v in zip(self.usual, x, strict=True)]

    def widen(self, factor: float) -> None:
        self.stops.widen(factor)
        self.log_tokens.widen(factor)

    def state(self) -> dict[str, Any]:
        return {
            "stops": self.stops.state(),
            "log_tokens": self.log_tokens.state(),
            "usual": list(self.usual),
            "seen": self.seen,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.stops.restore(state["stops"])
        self.log_tokens.restore(state["log_tokens"])
        self.usual, self.seen = list(state["usual"]), state["seen"]


@dataclass(slots=True)
class _Open:
    features: tuple[float, ...]
    """Of its newest turn, whose end is not known yet."""
    is_sampled: bool = False


class HazardModel:
    """A `LengthEstimator`."""

    def __init__(
        self, *, half_life: float = 2000.0, siblings: SiblingPosterior | None = None
    ) -> None:
        """`half_life` in ended attempts. With `siblings` the level of an attempt's group, as far as
        it is known, is one of its lasting facts."""
        self._siblings = siblings
        self._growth = 2.0 ** (1.0 / half_life)
        self._families: dict[str, _Family] = {}
        self._open: dict[tuple[str, str], _Open] = {}
        self._asked: tuple[TrajectoryView, tuple[float, ...]] | None = None
        """The newest view and its features, until something else is learned."""

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        key = (trajectory.job, trajectory.trajectory_id)
        self._asked = None
        if self._siblings is not None:
            self._siblings.turn_ready(trajectory)
        x = self._features(trajectory)
        family = self._family(trajectory)
        before = self._open.get(key)
        if before is not None and before.is_sampled:
            family.stops.learn(before.features, is_yes=False)
        family.see(x)
        self._open[key] = _Open(x)

    def placed(self, trajectory: TrajectoryView) -> None:
        """Placement tells nothing of length."""

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        self._asked = None
        if self._siblings is not None:
            self._siblings.turn_finished(trajectory)
        watched = self._open[trajectory.job, trajectory.trajectory_id]
        watched.is_sampled = True
        tokens = trajectory.turn_tokens[-1]
        self._family(trajectory).log_tokens.learn(watched.features, log(max(1, tokens)))

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        self._asked = None
        if self._siblings is not None:
            self._siblings.ended(trajectory, is_complete=is_complete)
        watched = self._open.pop((trajectory.job, trajectory.trajectory_id), None)
        if watched is None or not is_complete:
            return
        family = self._family(trajectory)
        if watched.is_sampled:
            family.stops.learn(watched.features, is_yes=True)
        family.widen(self._growth)

    def predict(self, trajectory: TrajectoryView) -> Residual:
        return Residual.from_hazards(self.hazards(trajectory))

    def hazards(self, trajectory: TrajectoryView) -> list[float]:
        """The chance of ending in each bin of the residual, given that it is reached."""
        x = self._features(trajectory)
        return hazards_of(_walk(self._family(trajectory), trajectory, x))

    def state(self) -> dict[str, Any]:
        """What has been learned, as plain data for a checkpoint."""
        return {
            "families": {name: family.state() for name, family in self._families.items()},
            "siblings": self._siblings.state() if self._siblings is not None else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self._asked = None
        self._families = {}
        for name, saved in state["families"].items():
            self._families[name] = _Family()
            self._families[name].restore(saved)
        if self._siblings is not None:
            self._siblings.restore(state["siblings"])

    def _features(self, trajectory: TrajectoryView) -> tuple[float, ...]:
        if self._asked is None or self._asked[0] is not trajectory:
            shift = self._siblings.shift(trajectory) if self._siblings is not None else 0.0
            self._asked = trajectory, features(trajectory, shift)
        return self._asked[1]

    def _family(self, trajectory: TrajectoryView) -> _Family:
        family = self._families.get(trajectory.task_family)
        if family is None:
            family = self._families[trajectory.task_family] = _Family()
        return family


def _walk(family: _Family, trajectory: TrajectoryView, x: tuple[float, ...]) -> list[float]:
    """Probability of each bin of the residual. Later turns are taken in growing strides."""
    stops, tokens = family.stops.mean, family.log_tokens.mean
    lasting_stop = _part(stops, x, 3, _LASTING) + stops[0]
    lasting_tokens = _part(tokens, x, 3, _LASTING) + tokens[0]
    usual_stop = _part(stops, family.usual, _LASTING, _NUM_FEATURES)
    usual_tokens = _part(tokens, family.usual, _LASTING, _NUM_FEATURES)
    recent_stop = _part(stops, x, _LASTING, _NUM_FEATURES) - usual_stop
    recent_tokens = _part(tokens, x, _LASTING, _NUM_FEATURES) - usual_tokens
    variance = family.log_tokens.variance
    spread = exp(variance) - 1.0
    bins = [0.0] * NUM_BINS
    survival, total, squares, turn = 1.0, 0.0, 0.0, 0
    stride = 1
    while turn < _MOST_TURNS and survival > 1e-3:
        age = log1p(trajectory.turn + turn)
        size = log1p((trajectory.tokens + total) / 100.0)
        fade = _FADE**turn
        log_tokens = lasting_tokens + usual_tokens + recent_tokens * fade
        log_tokens += tokens[1] * age + tokens[2] * size
        each = exp(min(max(log_tokens, 0.0), 10.5) + variance / 2)
        log_odds = lasting_stop + usual_stop + recent_stop * fade
        hazard = sigmoid(log_odds + stops[1] * age + stops[2] * size)
        goes_on = (1.0 - hazard) ** stride
        ending = total + each * (1 + (stride - 1) / 2)
        _add_log_normal(bins, survival * (1.0 - goes_on), ending, squares + each * each * spread)
        survival *= goes_on
        total += each * stride
        squares += each * each * spread * stride
        turn += stride
        stride = max(1, turn // 6)
    bins[-1 if total > BIN_EDGES[-1] else _bin(total)] += survival
    return bins


def _part(weights: list[float], x: tuple[float, ...] | list[float], low: int, high: int) -> float:
    return sum(weights[i] * x[i] for i in range(low, high))


def _bin(tokens: float) -> int:
    return sum(tokens >= edge for edge in BIN_EDGES)


def _add_log_normal(bins: list[float], mass: float, mean: float, variance: float) -> None:
    """Spread `mass` over the bins like a log-normal of this mean and variance."""
    log_variance = log1p(variance / (mean * mean))
    scale = 1.0 / sqrt(2.0 * max(log_variance, 1e-4))
    middle = log(mean) - log_variance / 2
    below = 0.0
    for at, edge in enumerate(_LOG_EDGES):
        z = (edge - middle) * scale
        if z < -3.0:
            continue
        reached = 1.0 if z > 3.0 else 0.5 * (1.0 + erf(z))
        bins[at] += mass * (reached - below)
        below = reached
        if z > 3.0:
            return
    bins[-1] += mass * (1.0 - below)
