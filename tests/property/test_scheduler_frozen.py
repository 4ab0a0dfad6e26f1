"""A scheduler that is frozen at any event goes on, in another process, as if nothing had been."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler_restore import Views, play, scheduler_with

from scheduler.core import Scheduler
from scheduler.estimators.choose import NAMES
from scheduler.replay import LogEntry
from scheduler.sim.fuzz import RandomRun
from scheduler.sim.fuzz_shifts import RandomShiftingRun

SEEDS = st.integers(0, 10**6)
SHARES = st.floats(0, 1)


def decides_the_rest(scheduler: Scheduler, log: Sequence[LogEntry], frozen_at: int) -> bool:
    for entry in log[:frozen_at]:
        scheduler.on(entry.event)
    thawed = pickle.loads(pickle.dumps(scheduler))
    return all(thawed.on(entry.event) == entry.decisions for entry in log[frozen_at:])


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, share=SHARES, kind=st.sampled_from([RandomRun, RandomShiftingRun]))
def test_under_faults_and_shifts(
    seed: int, share: float, kind: type[RandomRun] | type[RandomShiftingRun]
) -> None:
    run = kind(seed)
    run.play()
    assert decides_the_rest(run.scheduler(), run.log, int(share * len(run.log)))


@pytest.mark.parametrize("policy", ["elapsed_queue", "libra_gate", "sibling_rule", "round_robin"])
@settings(max_examples=2, deadline=None)
@given(seed=SEEDS, share=SHARES)
def test_with_every_policy(policy: str, seed: int, share: float) -> None:
    log = play(scheduler_with(policy, {}, Views()), seed)
    assert decides_the_rest(scheduler_with(policy, {}, Views()), log, int(share * len(log)))


@pytest.mark.parametrize("estimator", NAMES)
@settings(max_examples=2, deadline=None)
@given(seed=SEEDS, share=SHARES)
def test_with_every_estimator(estimator: str, seed: int, share: float) -> None:
    options = {"estimator": estimator}
    log = play(scheduler_with("buckets", options, Views()), seed)
    scheduler = scheduler_with("buckets", options, Views())
    assert decides_the_rest(scheduler, log, int(share * len(log)))
