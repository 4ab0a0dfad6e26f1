"""What a scheduler has learned outlives it: a checkpoint keeps it and the next launch has it again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.costs import libra_shapes
from scheduler.decisions import Decision
from scheduler.estimators.choose import NAMES, make_estimator
from scheduler.estimators.prefix_tree import PrefixTree
from scheduler.events import Event, Restored
from scheduler.policies import Learner, LengthEstimator
from scheduler.replay import LogEntry, read_log, replay
from scheduler.sim.cluster import Cluster
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.fuzz_shifts import RandomShiftingRun
from scheduler.sim.specs import StepSpec, WorkerSpec
from scheduler.sim.workload import PRESETS, AgentWorkload
from scheduler.views import TrajectoryView
from scheduler.wiring import World, wire

SHAPES = {f"tp{tp}": shape for tp, shape in libra_shapes(memory_share=0.85).items()}
WORLD = World(shapes=SHAPES, buckets=("tp2", "tp4"), max_tokens=16_384)


class Views:
    """An observer that keeps what it was shown when turns were ready."""

    def __init__(self) -> None:
        self.seen: list[TrajectoryView] = []

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        self.seen.append(trajectory)

    def placed(self, trajectory: TrajectoryView) -> None:
        pass

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        pass

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        pass


def scheduler_with(policy: str, options: dict[str, Any], views: Views) -> Scheduler:
    wired = wire(policy, options, WORLD)
    return Scheduler(
        routing=wired.routing,
        admission=CapacityAdmission(groups_per_step=4, num_steps=2, max_running_groups=6),
        observers=(*wired.observers, views),
        learners=wired.learners,
    )


def play(scheduler: Scheduler, seed: int, learned: dict[str, Any] | None = None) -> list[LogEntry]:
    """A launch on two workers, from what was learned on; its log."""
    log: list[LogEntry] = []

    def listen(event: Event, decisions: tuple[Decision, ...]) -> None:
        log.append(LogEntry(event=event, decisions=decisions))

    if learned is not None:
        event = Restored(learned=learned)
        listen(event, scheduler.on(event))
    Cluster(
        workers=[
            WorkerSpec(worker_id=name, bucket=name, shape=SHAPES[name], max_running=6)
            for name in ("tp2", "tp4")
        ],
        steps=StepSpec(num_steps=2, groups_per_step=4, train_seconds=5.0),
        workload=AgentWorkload(model=PRESETS["search"], seed=seed, group_size=4),
        scheduler=scheduler,
        faults=Faults(FaultModel(worker_mean_life_s=300.0), np.random.default_rng(seed)),
        listen=listen,
    ).run()
    return log


def as_kept(state: dict[str, Any]) -> dict[str, Any]:
    """After a checkpoint's file."""
    kept: dict[str, Any] = json.loads(json.dumps(state))
    return kept


def forecasts(estimator: LengthEstimator, views: list[TrajectoryView]) -> list[Any]:
    return [estimator.predict(view) for view in views]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_restored_estimator_forecasts_the_same(name: str, seed: int) -> None:
    views = Views()
    learned_by = make_estimator(name)
    wired = wire("round_robin", {}, WORLD)
    play(
        Scheduler(
            routing=wired.routing,
            admission=CapacityAdmission(groups_per_step=4, num_steps=2, max_running_groups=6),
            observers=(learned_by, views),
        ),
        seed,
    )
    again, fresh = make_estimator(name), make_estimator(name)
    again.restore(as_kept(learned_by.state()))
    assert forecasts(again, views.seen) == forecasts(learned_by, views.seen)
    assert forecasts(again, views.seen) != forecasts(fresh, views.seen)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000), policy=st.sampled_from(["buckets", "libra_gate"]))
def test_a_resumed_launch_replays_from_its_own_log(seed: int, policy: str) -> None:
    first = scheduler_with(policy, {}, Views())
    play(first, seed)
    learned = as_kept(first.save())
    log = play(scheduler_with(policy, {}, Views()), seed + 1, learned)
    lines = [entry.to_line() for entry in log]
    report = replay(scheduler_with(policy, {}, Views()), read_log(lines))
    assert report.difference is None
    assert report.num_events == len(log)


def test_what_was_learned_changes_what_is_decided() -> None:
    first = scheduler_with("buckets", {}, Views())
    play(first, 1)
    learned = as_kept(first.save())
    known = play(scheduler_with("buckets", {}, Views()), 2, learned)
    fresh = play(scheduler_with("buckets", {}, Views()), 2)
    assert [e.decisions for e in known[1:]] != [e.decisions for e in fresh]


def test_what_another_policy_had_learned_is_left_out() -> None:
    first = scheduler_with("buckets", {"estimator": "hazard"}, Views())
    play(first, 1)
    second = scheduler_with("buckets", {"estimator": "pooled"}, Views())
    before = second.save()
    second.on(Restored(learned=as_kept(first.save())))
    after = second.save()
    assert after.pop("costs") != before.pop("costs")  # what work costs, every policy can use
    assert after == before


@pytest.mark.parametrize("policy", ["pay_back", "seeding_controller"])
def test_shift_policies_keep_what_they_measured(policy: str) -> None:
    run = RandomShiftingRun(3, has_faults=False)
    run.policy = policy
    _, _, scheduler = run.play()
    learned = as_kept(scheduler.save())
    again = run.scheduler()
    assert again.save() != learned
    again.on(Restored(learned=learned))
    assert as_kept(again.save()) == learned


def test_a_restored_prefix_tree_expects_the_same_of_new_groups() -> None:
    tree, views = PrefixTree(), Views()
    wired = wire("round_robin", {}, WORLD)
    play(
        Scheduler(
            routing=wired.routing,
            admission=CapacityAdmission(groups_per_step=4, num_steps=2, max_running_groups=6),
            observers=(tree, views),
        ),
        5,
    )
    again: Learner = PrefixTree()
    again.restore(as_kept(tree.state()))
    assert isinstance(again, PrefixTree)
    asked = [view for view in views.seen if view.tools]
    unknown = [replace(view, group_id="new") for view in asked]
    assert [again.expected(view) for view in unknown] == [tree.expected(v) for v in unknown]
    assert any(again.expected(view) is not None for view in unknown)
