from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scheduler_views import trajectory

from scheduler.estimators.accuracy import ForecastCheck, Scored, accuracy_of, worst_attempts
from scheduler.estimators.oracle import Oracle
from scheduler.residual import NUM_BINS, Residual, hazards_of


def play(check: ForecastCheck, name: str, turns: list[int]) -> None:
    view = trajectory(name)
    for turn, tokens in enumerate(turns):
        view = replace(view, turn=turn)
        check.turn_ready(view)
        view = replace(view, tokens=view.tokens + tokens, turn_tokens=(*view.turn_tokens, tokens))
        check.turn_finished(view)
    check.ended(view, is_complete=True)


def scored(real: int, forecast: float, rank: float = 0.5, name: str = "t") -> Scored:
    return Scored(
        trajectory_id=name,
        turn=0,
        forecast_tokens=forecast,
        mean_tokens=forecast,
        real_tokens=real,
        rank=rank,
        log_loss=0.0,
    )


def test_each_turn_is_judged_by_what_was_left_then() -> None:
    check = ForecastCheck(Oracle(lambda view: 1000))
    play(check, "t0", [600, 400])
    assert [(one.turn, one.forecast_tokens, one.real_tokens) for one in check.scored] == [
        (0, 1000, 1000),
        (1, 400, 400),
    ]
    assert all(one.log2_error == 0 and one.log_loss == 0 for one in check.scored)


def test_lost_attempts_and_repeated_asks_are_not_scored() -> None:
    check = ForecastCheck(Oracle(lambda view: 1000))
    check.turn_ready(trajectory("lost"))
    check.ended(trajectory("lost"), is_complete=False)
    assert check.scored == []
    view = trajectory("again")
    check.turn_ready(view)
    check.turn_ready(replace(view, generation=1))
    check.ended(replace(view, tokens=100), is_complete=True)
    assert len(check.scored) == 1


def test_errors_are_in_doublings_with_a_sign() -> None:
    assert scored(real=800, forecast=100).log2_error == pytest.approx(-3)
    accuracy = accuracy_of([scored(real=800, forecast=100), scored(real=100, forecast=200)])
    assert accuracy.log2_error == pytest.approx(2)


def test_calibration_is_the_share_of_ranks_below_each_quantile() -> None:
    ranks = [(i + 0.5) / 100 for i in range(100)]
    even = accuracy_of([scored(10, 10, rank) for rank in ranks])
    assert all(share == pytest.approx(q, abs=0.01) for q, share in even.calibration)
    low = accuracy_of([scored(10, 10, rank / 2) for rank in ranks])
    assert dict(low.calibration)[0.5] == 1.0


def test_tail_recall_asks_for_the_longest_tenth() -> None:
    right = [scored(real=i, forecast=i) for i in range(1, 41)]
    wrong = [scored(real=i, forecast=41 - i) for i in range(1, 41)]
    assert accuracy_of(right).tail_recall == 1.0
    assert accuracy_of(wrong).tail_recall == 0.0


def test_the_worst_forecast_of_each_attempt_counts_once() -> None:
    worst = worst_attempts(
        [scored(100, 100, name="a"), scored(100, 800, name="b"), scored(100, 200, name="b")], 5
    )
    assert [(one.trajectory_id, one.forecast_tokens) for one in worst] == [("b", 800), ("a", 100)]


def test_mass_below_is_spread_inside_a_bin_in_the_logarithm() -> None:
    bins = [0.0] * NUM_BINS
    bins[3] = 1.0
    residual = Residual.from_bins(bins)
    assert residual.below(128) == 0.0
    assert residual.below(2**7.5) == pytest.approx(0.5, abs=0.01)
    assert residual.below(256) == 1.0
    assert Residual.certain(50).below(51) == 1.0
    assert Residual.certain(50).below(50) == 0.0


def test_hazards_and_probabilities_are_each_others_inverse() -> None:
    bins = [(i + 1) / sum(range(NUM_BINS + 1)) for i in range(NUM_BINS)]
    again = Residual.from_hazards(hazards_of(bins)).probabilities
    assert all(math.isclose(a, b) for a, b in zip(again, bins, strict=True))
