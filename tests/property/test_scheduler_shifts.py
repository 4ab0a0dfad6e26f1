"""The rules of `scheduler.invariants` while workers change roles and everything goes wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.decisions import HandoffOrder, Outcome, Place, Shift, StartStep
from scheduler.events import PlaceRejected
from scheduler.handoff_rules import InvariantBroken
from scheduler.invariants import InvariantChecker
from scheduler.replay import LogEntry, replay
from scheduler.sim.fuzz import GROUP_SIZE
from scheduler.sim.fuzz_shifts import RandomShiftingRun
from scheduler.sim.stepwise import StepwiseWorker


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_no_rule_breaks_while_workers_shift_and_all_work_ends(seed: int) -> None:
    run = RandomShiftingRun(seed)
    result, checker, scheduler = run.play()
    wanted = run.steps.num_steps * run.groups_per_step * GROUP_SIZE
    assert checker.num_finished == len(result.ended) == result.num_judged == wanted
    assert checker.open_trajectories == frozenset()
    assert scheduler.demands() == {}
    assert not any(worker.num_running for worker in scheduler.members())


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_log_with_shifts_replays_byte_for_byte(seed: int) -> None:
    run = RandomShiftingRun(seed)
    run.play()
    lines = [entry.to_line() for entry in run.log]
    report = replay(run.scheduler(), map(LogEntry.from_line, lines))
    assert report.difference is None
    assert report.num_events == len(run.log)


@pytest.mark.parametrize("has_faults", [False, True])
def test_skipping_and_stepping_clusters_agree_while_workers_shift(has_faults: bool) -> None:
    num_shifts = 0
    for seed in range(10):
        (fast, _, _), (slow, _, _) = (
            RandomShiftingRun(seed, has_faults=has_faults).play(*make)
            for make in ((), (StepwiseWorker,))
        )
        assert fast.seconds == pytest.approx(slow.seconds)
        assert [(e.plan.trajectory_id, round(e.ended_t, 6)) for e in fast.ended] == [
            (e.plan.trajectory_id, round(e.ended_t, 6)) for e in slow.ended
        ]
        assert (fast.num_events, fast.num_shifts) == (slow.num_events, slow.num_shifts)
        assert fast.step_ends == pytest.approx(slow.step_ends)
        num_shifts += fast.num_shifts
    assert num_shifts > 50


def test_everything_really_happens() -> None:
    outcomes: Counter[Outcome] = Counter()
    kinds: Counter[str] = Counter()
    num_tried_again = 0
    for seed in range(60):
        run = RandomShiftingRun(seed)
        _, checker, _ = run.play()
        outcomes += checker.handoffs.num_ended
        num_tried_again += tried_again(run.log)
        for entry in run.log:
            kinds[type(entry.event).__name__] += 1
            kinds.update(type(decision).__name__ for decision in entry.decisions)
    for outcome in (Outcome.COMPLETED, Outcome.RESTARTED, Outcome.LOST, Outcome.ROLLED_BACK):
        assert outcomes[outcome] >= 10, outcome
    for kind in ("PreemptionNotice", "WorkerLost", "HandoffFailed", "CancelShift", "Evict"):
        assert kinds[kind] >= 10, kind
    assert num_tried_again >= 10


def tried_again(log: list[LogEntry]) -> int:
    """Times that a worker got a turn under a generation that had been rejected."""
    rejected: set[tuple[str, int]] = set()
    count = 0
    for entry in log:
        for place in entry.decisions:
            if isinstance(place, Place) and (place.worker_id, place.worker_generation) in rejected:
                rejected.remove((place.worker_id, place.worker_generation))
                count += 1
        if isinstance(entry.event, PlaceRejected):
            rejected.add((entry.event.worker_id, entry.event.worker_generation))
    return count


# Negative controls: logs that were tampered with are caught.


def first_with(log: list[LogEntry], kind: type) -> int:
    return next(
        i for i, entry in enumerate(log) if any(isinstance(d, kind) for d in entry.decisions)
    )


def changed(log: list[LogEntry], at: int, kind: type, **fields: object) -> list[LogEntry]:
    decisions = tuple(
        replace(d, **fields) if isinstance(d, kind) else d  # type: ignore[type-var]
        for d in log[at].decisions
    )
    return [*log[:at], replace(log[at], decisions=decisions), *log[at + 1 :]]


@pytest.mark.parametrize(
    ("kind", "fields", "rule"),
    [
        (Shift, {"worker_generation": 7}, "old generation"),
        (HandoffOrder, {"generation": 99}, "old generation"),
        (StartStep, {"workers": ("w9",)}, "does not serve training"),
        (StartStep, {"step": 5}, "without its batch"),
    ],
)
def test_checker_sees_what_is_wrong(kind: type, fields: dict[str, object], rule: str) -> None:
    run = next(
        run
        for run in map(RandomShiftingRun, range(20))
        if run.policy == "pay_back" and run.play()[0].num_shifts
    )
    log = changed(run.log, first_with(run.log, kind), kind, **fields)
    checker = InvariantChecker(groups_per_step=run.groups_per_step, max_staleness=run.staleness)
    with pytest.raises(InvariantBroken, match=rule):
        check_all(checker, log)


def check_all(checker: InvariantChecker, log: list[LogEntry]) -> None:
    for entry in log:
        checker.check(entry.event, entry.decisions)
