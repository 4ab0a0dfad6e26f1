"""What would have come of another routing, from a log with random placements in it.

A rule that sends long attempts to wide workers makes the means by bucket incomparable. Where a share
of placements was random (scheduler.routing.exploration), weighting each turn by one over the logged
probability of its worker gives every kind of turn the share it would have had if all of them
had gone to that bucket: inverse propensity weighting, self-normalised, so weights need no scale.

It answers for one turn at a time, with everybody else routed as they were: a bucket that gets all turns
is also fuller, and that is not in it. With the factorisation behind our estimators (tokens do not
depend on the worker) estimates of *tokens* must agree with any other routing, load or not; a test
holds both against direct simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.decisions import Place
from scheduler.events import TurnFinished, WorkerReady
from scheduler.replay import LogEntry

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTurn:
    """A turn that ran to its end where it was placed."""

    trajectory_id: str
    bucket: str
    propensity: float
    tokens: int
    seconds: float
    """From placement to end."""


def placed_turns(log: Iterable[LogEntry]) -> list[PlacedTurn]:
    buckets: dict[str, str] = {}
    places: dict[str, Place] = {}
    turns = []
    for entry in log:
        event = entry.event
        match event:
            case WorkerReady():
                buckets[event.worker_id] = event.bucket
            case TurnFinished():
                place = places.pop(event.trajectory_id, None)
                if place is not None and place.generation == event.generation:
                    turns.append(
                        PlacedTurn(
                            trajectory_id=event.trajectory_id,
                            bucket=buckets[place.worker_id],
                            propensity=place.propensity,
                            tokens=event.tokens,
                            seconds=event.t - place.t,
                        )
                    )
            case _:
                pass
        for decision in entry.decisions:
            if isinstance(decision, Place):
                places[decision.trajectory_id] = decision
    return turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its 95 % bootstrap interval over attempts."""

    mean: float
    low: float
    high: float
    num_turns: int


def had_all_gone_to(
    bucket: str,
    turns: Sequence[PlacedTurn],
    value: Callable[[PlacedTurn], float],
    *,
    weighted: bool = True,
) -> Estimate:
    """Mean of `value` if every turn had gone to `bucket`. Not `weighted`: of those that did."""
    sums: dict[str, list[float]] = {}
    num_turns = 0
    for turn in turns:
        if turn.bucket == bucket:
            weight = 1.0 / turn.propensity if weighted else 1.0
            of_attempt = sums.setdefault(turn.trajectory_id, [0.0, 0.0])
            of_attempt[0] += weight * value(turn)
            of_attempt[1] += weight
            num_turns += 1
    if not sums:
        raise ValueError(f"no turn of the log ran in bucket {bucket!r}")
    by_attempt = np.array(list(sums.values()))
    draws = np.random.default_rng(0).integers(0, len(by_attempt), (_RESAMPLES, len(by_attempt)))
    resampled = by_attempt[draws].sum(axis=1)
    low, high = np.quantile(resampled[:, 0] / resampled[:, 1], (0.025, 0.975))
    total = by_attempt.sum(axis=0)
    return Estimate(
        mean=float(total[0] / total[1]), low=float(low), high=float(high), num_turns=num_turns
    )
