"""What work has cost, learned from the log, against what was believed."""

from __future__ import annotations

import json
from functools import cache

import pytest
from scheduler_driver import Driver

from scheduler.calibration import Calibration, KnownCosts
from scheduler.costs import DecodeCost, PrefillCost, Shape, TrainCost
from scheduler.events import (
    Event,
    Progress,
    Role,
    StepEnded,
    Submitted,
    TurnFinished,
    TurnReady,
    WeightsLoaded,
    WorkerReady,
)
from scheduler.gauges import Gauge
from scheduler.replay import LogEntry
from scheduler.sim.fuzz_shifts import RandomShiftingRun
from scheduler.sim.specs import PlannerCost, StageTimes

SHAPE = Shape(
    tp=1,
    decode=DecodeCost(b=0.0, b0=0.0, c=0.01, a=0.0001, d=0.1),
    prefill=PrefillCost(per_token=0.001),
    kv_tokens=10_000,
)
TURNS = "turns of rollout on default"


def played(calibration: Calibration, *events: Event) -> None:
    """The events at the times they carry, through a scheduler that places at once."""
    driver = Driver()
    for seq, event in enumerate(events):
        object.__setattr__(event, "seq", seq)
        calibration.on(event, driver.scheduler.on(event))


def worker(t: float = 0.0) -> WorkerReady:
    return WorkerReady(t=t, worker_id="w", role=Role.ROLLOUT, max_running=4)


def begun(name: str, t: float, context: int = 100) -> tuple[Submitted, TurnReady]:
    return (
        Submitted(t=t, trajectory_id=name, group_id="g"),
        TurnReady(t=t, trajectory_id=name, turn=0, context_tokens=context),
    )


def ended(name: str, t: float, tokens: int, context: int) -> TurnFinished:
    return TurnFinished(t=t, trajectory_id=name, turn=0, tokens=tokens, context_tokens=context)


def seconds_alone(tokens: int, context: int) -> float:
    """By the formula: prefill, then steps whose context grows."""
    return context * 0.001 + sum(0.1 + 0.01 + 0.0001 * (context + i) for i in range(tokens))


def test_a_turn_that_takes_what_the_model_says_has_no_error() -> None:
    calibration = Calibration(KnownCosts(shapes={(Role.ROLLOUT, "default"): SHAPE}))
    end_t = 5.0 + seconds_alone(50, 100)
    played(calibration, worker(), *begun("a", 5.0), ended("a", end_t, 50, 150))
    report = calibration.reports()[TURNS]
    assert report.num_observed == 1
    assert report.error_before == pytest.approx(0.0, abs=1e-3)
    assert report.scale == pytest.approx(1.0, abs=1e-3)


def test_the_load_of_the_whole_turn_counts() -> None:
    """Another turn runs beside it for half of its time."""
    calibration = Calibration(KnownCosts(shapes={(Role.ROLLOUT, "default"): SHAPE}))
    played(
        calibration,
        worker(),
        *begun("a", 0.0, 0),
        *begun("b", 5.0, 0),
        ended("a", 10.0, 50, 50),
    )
    step_s = 10.0 / 50
    mean_sequences = 1.5
    said = 0.1 + 0.01 * mean_sequences + 0.0001 * mean_sequences * 25
    expected = abs(said - step_s) / step_s
    assert calibration.reports()[TURNS].error_before == pytest.approx(expected, abs=1e-6)


def test_from_the_first_tokens_on_only_decoding_is_timed() -> None:
    """The prompt took long, for whatever reason: decoding is judged without it."""
    calibration = Calibration(KnownCosts(shapes={(Role.ROLLOUT, "default"): SHAPE}))
    rest_s = seconds_alone(60, 100) - seconds_alone(10, 100)
    played(
        calibration,
        worker(),
        *begun("a", 0.0),
        Progress(t=100.0, trajectory_id="a", turn=0, tokens=10),
        ended("a", 100.0 + rest_s, 60, 160),
    )
    error = calibration.reports()[TURNS].error_before
    assert error == pytest.approx(0.0, abs=0.02)


def test_late_ends_and_lost_turns_teach_nothing() -> None:
    calibration = Calibration()
    played(
        calibration,
        worker(),
        *begun("a", 0.0),
        TurnReady(t=1.0, trajectory_id="a", generation=1, turn=0, context_tokens=100),
        ended("a", 2.0, 50, 150),
    )
    assert calibration.reports() == {}


def test_measured_loads_are_gauged_by_role() -> None:
    calibration = Calibration()
    loads = [WeightsLoaded(t=float(i), worker_id="w", version=i, seconds=2.0) for i in range(1, 4)]
    played(calibration, worker(), *loads, WeightsLoaded(t=9.0, worker_id="w", version=9))
    report = calibration.reports()["weights to rollout"]
    assert (report.num_observed, report.scale, report.error) == (3, 2.0, 0.0)


@cache
def logs() -> list[list[LogEntry]]:
    runs = []
    for seed in range(8):
        run = RandomShiftingRun(seed, has_faults=False)
        run.policy = "colocated_phases"
        run.planner = PlannerCost(per_plan_us=0.0)
        run.play()
        runs.append(run.log)
    return runs


def test_wrong_costs_are_put_right_and_the_error_says_so() -> None:
    times = StageTimes()
    third = {(a, b): times.total_s(a, b) / 3 for a in Role for b in Role}
    calibration = Calibration(KnownCosts(shift_s=third))
    for log in logs():
        for entry in log:
            calibration.on(entry.event, entry.decisions)
    name = f"handoff {Role.GENRM} to {Role.TRAINING}"
    report = calibration.reports()[name]
    assert report.num_observed > 20
    assert report.scale == pytest.approx(3.0, rel=0.25)
    assert report.error is not None
    assert report.error_before is not None
    assert report.error_before == pytest.approx(2 / 3, abs=0.1)
    assert report.error < 0.6 * report.error_before
    real = times.total_s(Role.GENRM, Role.TRAINING)
    assert calibration.shift_s(Role.GENRM, Role.TRAINING) == pytest.approx(real, rel=0.25)


def test_what_nobody_knew_is_learned_from_nothing() -> None:
    calibration = Calibration()
    cost = TrainCost(per_token=1e-3)
    for log in logs():
        for entry in log:
            calibration.on(entry.event, entry.decisions)
            if isinstance(entry.event, StepEnded):
                cost = TrainCost(per_token=calibration.train_scale)
    report = calibration.reports()["training step"]
    assert report.error_before is None
    assert report.error is not None
    assert cost.per_token > 0


def test_what_was_learned_survives_a_checkpoint() -> None:
    first, second = Calibration(), Calibration()
    for entry in logs()[0]:
        first.on(entry.event, entry.decisions)
    second.restore(json.loads(json.dumps(first.state())))
    assert first.reports()
    assert second.reports() == first.reports()
    pair = (Role.GENRM, Role.TRAINING)
    assert second.shift_s(*pair) == first.shift_s(*pair)


def test_a_measured_model_outweighs_its_first_observations() -> None:
    told, guessed = Gauge(), Gauge(is_guess=True)
    for gauge in (told, guessed):
        gauge.see(4.0, 1.0)
    assert told.scale == pytest.approx((4 + 8) / 9)
    assert guessed.scale == 4.0
