"""The rules of `scheduler.invariants` under random clusters, agents and faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.costs import DecodeCost, PrefillCost, Shape
from scheduler.decisions import Decision, Place
from scheduler.estimators.pooled import PooledTrees
from scheduler.events import Event, WorkerReady
from scheduler.invariants import InvariantBroken, InvariantChecker
from scheduler.policies import RoutePolicy
from scheduler.replay import LogEntry, replay
from scheduler.routing.buckets import BucketRouter
from scheduler.routing.least_load import LeastLoad
from scheduler.routing.round_robin import RoundRobin
from scheduler.sim.cluster import Cluster, ClusterResult, StepSpec, WorkerSpec
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.workload import PRESETS, AgentWorkload


def shape(tp: int, kv_tokens: int) -> Shape:
    return Shape(
        tp=tp,
        decode=DecodeCost(b=0.01 / tp, b0=0.005 / tp, c=1e-4 * tp, a=1e-7 / tp, d=1e-3),
        prefill=PrefillCost(per_token=1e-4 / tp),
        kv_tokens=kv_tokens,
    )


class RandomRun:
    """A small cluster with everything drawn from one seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng((seed, 1))
        self.seed = seed
        self.staleness = int(rng.integers(0, 3))
        self.groups_per_step = int(rng.integers(1, 4))
        self.steps = StepSpec(
            num_steps=3,
            groups_per_step=self.groups_per_step,
            train_seconds=float(rng.uniform(0, 20)),
            pull_seconds=float(rng.uniform(0, 3)),
        )
        self.workers = [
            WorkerSpec(
                worker_id=f"w{i}",
                bucket=f"b{i % 2}",
                shape=shape(1 + i % 2, int(rng.integers(42_000, 90_000))),
                max_running=int(rng.integers(1, 5)),
            )
            for i in range(int(rng.integers(1, 5)))
        ]
        self.faults = FaultModel(
            worker_mean_life_s=float(rng.choice([60.0, 300.0])),
            worker_down_s=10.0,
            detection_s=float(rng.choice([0.0, 8.0])),
            box_failure=0.03,
            late_message=0.3,
            dispatch_s=float(rng.choice([0.0, 0.5])),
        )
        self.preset = str(rng.choice(["search", "math", "swe", "equal"]))
        self.policy = str(rng.choice(["least load", "loyal", "round robin", "buckets"]))
        self.log: list[LogEntry] = []

    def scheduler(self) -> Scheduler:
        buckets = BucketRouter(PooledTrees(), {"b0": shape(1, 60_000), "b1": shape(2, 60_000)})
        policies: dict[str, RoutePolicy] = {
            "least load": LeastLoad(sticky_gap=0.3),
            "loyal": LeastLoad(waits_for_home=True),
            "round robin": RoundRobin(),
            "buckets": buckets,
        }
        routing = policies[self.policy]
        return Scheduler(
            routing=routing,
            observers=(buckets,) if routing is buckets else (),
            admission=CapacityAdmission(
                groups_per_step=self.groups_per_step,
                num_steps=self.steps.num_steps,
                max_staleness=self.staleness,
                max_running_groups=4,
            ),
        )

    def play(self) -> tuple[ClusterResult, InvariantChecker, Scheduler]:
        checker = InvariantChecker(
            groups_per_step=self.groups_per_step, max_staleness=self.staleness
        )
        scheduler = self.scheduler()

        def listen(event: Event, decisions: tuple[Decision, ...]) -> None:
            self.log.append(LogEntry(event=event, decisions=decisions))
            checker.check(event, decisions)

        cluster = Cluster(
            workers=self.workers,
            steps=self.steps,
            workload=AgentWorkload(model=PRESETS[self.preset], seed=self.seed, group_size=3),
            scheduler=scheduler,
            faults=Faults(self.faults, np.random.default_rng((self.seed, 2))),
            listen=listen,
        )
        return cluster.run(), checker, scheduler


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_no_rule_breaks_under_random_faults_and_all_work_ends(seed: int) -> None:
    run = RandomRun(seed)
    result, checker, scheduler = run.play()
    wanted = run.steps.num_steps * run.groups_per_step * 3
    assert checker.num_finished == len(result.ended) == wanted
    assert len({ended.plan.trajectory_id for ended in result.ended}) == wanted
    assert checker.open_trajectories == frozenset()
    assert scheduler.num_open_trajectories == scheduler.num_held_slots == 0


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
