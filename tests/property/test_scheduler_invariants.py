"""The rules of `scheduler.invariants` under random clusters, agents and faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.decisions import Place
from scheduler.events import WorkerReady
from scheduler.handoff_rules import InvariantBroken
from scheduler.invariants import InvariantChecker
from scheduler.replay import LogEntry, replay
from scheduler.sim.fuzz import GROUP_SIZE, RandomRun


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_no_rule_breaks_under_random_faults_and_all_work_ends(seed: int) -> None:
    run = RandomRun(seed)
    result, checker, scheduler = run.play()
    wanted = run.steps.num_steps * run.groups_per_step * GROUP_SIZE
    assert checker.num_finished == len(result.ended) == wanted
    assert len({ended.plan.trajectory_id for ended in result.ended}) == wanted
    assert checker.open_trajectories == frozenset()
    assert scheduler.demands() == {}
    assert not any(worker.num_running for worker in scheduler.members())


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_recorded_run_with_faults_replays_byte_for_byte(seed: int) -> None:
    run = RandomRun(seed)
    run.play()
    lines = [entry.to_line() for entry in run.log]
    report = replay(run.scheduler(), map(LogEntry.from_line, lines))
    assert report.difference is None
    assert report.num_events == len(run.log)


def test_faults_really_happen() -> None:
    totals = np.zeros(3, int)
    for seed in range(12):
        run = RandomRun(seed)
        result, _, _ = run.play()
        kinds = [type(entry.event).__name__ for entry in run.log]
        totals += (kinds.count("WorkerLost"), result.num_lost_attempts, result.num_rejections)
    assert (totals >= (50, 10, 5)).all()


@pytest.mark.parametrize("rule", ["two slots", "too many turns", "lost worker"])
def test_checker_sees_broken_logs(rule: str) -> None:
    """Negative control: decisions tampered with are caught."""
    run = RandomRun(3)
    run.play()
    checker = InvariantChecker(groups_per_step=run.groups_per_step, max_staleness=run.staleness)
    places = [i for i, entry in enumerate(run.log) if _has_place(entry)]
    log = _tampered(run.log, rule, places[len(places) // 2])
    with pytest.raises(InvariantBroken):
        _check_all(checker, log)


def _has_place(entry: LogEntry) -> bool:
    return any(isinstance(decision, Place) for decision in entry.decisions)


def _tampered(log: list[LogEntry], rule: str, at: int) -> list[LogEntry]:
    match rule:
        case "two slots":
            twice = (*log[at].decisions, log[at].decisions[-1])
            return [*log[:at], replace(log[at], decisions=twice), *log[at + 1 :]]
        case "too many turns":
            return [_with_fewer_slots(entry) for entry in log]
        case _:
            return [entry for entry in log if not isinstance(entry.event, WorkerReady)]


def _with_fewer_slots(entry: LogEntry) -> LogEntry:
    if isinstance(entry.event, WorkerReady):
        return replace(entry, event=replace(entry.event, max_running=0))
    return entry


def _check_all(checker: InvariantChecker, log: list[LogEntry]) -> None:
    for entry in log:
        checker.check(entry.event, entry.decisions)
