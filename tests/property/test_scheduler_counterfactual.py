"""Estimates from random placements agree with simulating the other routing; plain means do not."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.costs import libra_shapes
from scheduler.counterfactual import Estimate, PlacedTurn, had_all_gone_to, placed_turns
from scheduler.policies import RoutePolicy
from scheduler.replay import LogEntry
from scheduler.routing.exploration import Exploration
from scheduler.routing.least_load import LeastLoad
from scheduler.sim.cluster import Cluster, StepSpec, WorkerSpec
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.workload import PRESETS, AgentWorkload
from scheduler.views import TrajectoryView, WorkerView

WORKLOAD = AgentWorkload(model=PRESETS["search"], seed=5, group_size=8)
STEPS = StepSpec(num_steps=16, groups_per_step=4)


class LongOnesGoWide(LeastLoad):
    """A rule that confounds as much as a rule can: it knows who is long."""

    def choose(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        group, _, sibling = trajectory.trajectory_id.partition("/")
        plan = WORKLOAD.group(int(group[1:]))[int(sibling)]
        wanted = "tp4" if plan.tokens > 1500 else "tp2"
        inside = [worker for worker in workers if worker.bucket == wanted]
        return super().choose(trajectory, inside)


def simulated(
    routing: RoutePolicy, tps: Sequence[int], exploration: Exploration | None
) -> list[PlacedTurn]:
    shapes = libra_shapes(memory_share=0.85)
    log: list[LogEntry] = []
    Cluster(
        workers=[
            WorkerSpec(worker_id=f"w{i}", bucket=f"tp{tp}", shape=shapes[tp], max_running=64)
            for i, tp in enumerate(tps)
        ],
        steps=STEPS,
        workload=WORKLOAD,
        scheduler=Scheduler(
            routing=routing,
            admission=CapacityAdmission(
                groups_per_step=STEPS.groups_per_step,
                num_steps=STEPS.num_steps,
                max_running_groups=100,
            ),
            exploration=exploration,
        ),
        faults=Faults(FaultModel(), np.random.default_rng(0)),
        listen=lambda event, decisions: log.append(LogEntry(event=event, decisions=decisions)),
    ).run()
    return placed_turns(log)


@pytest.fixture(scope="module")
def explored() -> list[PlacedTurn]:
    """More is random here than in a real run, so that few attempts are enough."""
    return simulated(LongOnesGoWide(), (2, 2, 4, 4), Exploration(0.3, Random(1)))


def agree(one: Estimate, other: Estimate) -> bool:
    return one.low <= other.high and other.low <= one.high


@pytest.mark.parametrize("tp", [2, 4])
def test_tokens_had_all_turns_gone_to_a_bucket(explored: list[PlacedTurn], tp: int) -> None:
    """The factorisation: tokens do not depend on the worker, once the rule's choice is undone."""
    direct = simulated(LeastLoad(sticky_gap=0.5), (tp,) * 4, None)
    bucket = f"tp{tp}"
    truth = had_all_gone_to(bucket, direct, lambda turn: turn.tokens)
    estimate = had_all_gone_to(bucket, explored, lambda turn: turn.tokens)
    naive = had_all_gone_to(bucket, explored, lambda turn: turn.tokens, weighted=False)
    assert agree(estimate, truth), (estimate, truth)
    assert not agree(naive, truth), (naive, truth)


@pytest.mark.parametrize("tp", [2, 4])
def test_seconds_had_all_turns_gone_to_a_bucket(explored: list[PlacedTurn], tp: int) -> None:
    """At equal load a worker, which is what the estimate speaks of."""
    direct = simulated(LeastLoad(sticky_gap=0.5), (tp,) * 4, None)
    bucket = f"tp{tp}"
    truth = had_all_gone_to(bucket, direct, lambda turn: turn.seconds)
    estimate = had_all_gone_to(bucket, explored, lambda turn: turn.seconds)
    naive = had_all_gone_to(bucket, explored, lambda turn: turn.seconds, weighted=False)
    assert agree(estimate, truth), (estimate, truth)
    assert not agree(naive, truth), (naive, truth)


def test_a_bucket_that_nothing_went_to_is_refused(explored: list[PlacedTurn]) -> None:
    with pytest.raises(ValueError, match="tp8"):
        had_all_gone_to("tp8", explored, lambda turn: turn.tokens)
