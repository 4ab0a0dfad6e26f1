"""The cluster against closed forms, and with both kinds of worker."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.costs import DecodeCost, PrefillCost, Shape
from scheduler.events import ToolStatus
from scheduler.routing.least_load import LeastLoad
from scheduler.sim.cluster import Cluster
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.requests import DecodeWorker
from scheduler.sim.specs import ClusterResult, StepSpec, WorkerSpec
from scheduler.sim.stepwise import StepwiseWorker
from scheduler.sim.worker import SkippingWorker
from scheduler.sim.workload import (
    PRESETS,
    AgentWorkload,
    AttemptPlan,
    ToolPlan,
    TurnPlan,
    Workload,
)

DECODE = DecodeCost(b=0.01, b0=0.004, c=5e-4, a=1e-7, d=0.001)


class FixedWorkload:
    """Equal attempts without chance."""

    def __init__(self, turns: tuple[TurnPlan, ...], group_size: int) -> None:
        self._turns = turns
        self._group_size = group_size

    def group(self, index: int) -> tuple[AttemptPlan, ...]:
        return tuple(
            AttemptPlan(
                group_id=f"g{index}",
                sibling=sibling,
                task_family="fixed",
                prompt_tokens=100,
                start_seconds=1.0,
                turns=self._turns,
            )
            for sibling in range(self._group_size)
        )


def run(
    workload: Workload,
    *,
    num_workers: int = 1,
    slots: int = 64,
    kv_tokens: int = 10**9,
    num_steps: int = 1,
    groups: int = 1,
    faults: FaultModel | None = None,
    make_worker: Callable[[Shape], DecodeWorker] = SkippingWorker,
) -> ClusterResult:
    shape = Shape(tp=1, decode=DECODE, prefill=PrefillCost(per_token=1e-4), kv_tokens=kv_tokens)
    return Cluster(
        workers=[
            WorkerSpec(worker_id=f"w{i}", bucket="b", shape=shape, max_running=slots)
            for i in range(num_workers)
        ],
        steps=StepSpec(num_steps=num_steps, groups_per_step=groups, train_seconds=5.0),
        workload=workload,
        scheduler=Scheduler(
            routing=LeastLoad(sticky_gap=0.3),
            admission=CapacityAdmission(
                groups_per_step=groups, num_steps=num_steps, max_running_groups=1000
            ),
        ),
        faults=Faults(faults or FaultModel(), np.random.default_rng(5)),
        make_worker=make_worker,
    ).run()


def test_one_worker_equal_lengths_takes_the_closed_form_time() -> None:
    result = run(FixedWorkload((TurnPlan(tokens=500, tool=None),), group_size=16))
    rollout = 16 * 100 * 1e-4 + DECODE.seconds(500, 16, 16 * 100)
    assert result.seconds == pytest.approx(1.0 + rollout + 5.0)


def test_turns_and_tools_add_up() -> None:
    tool = ToolPlan(tool="t", status=ToolStatus.OK, size_tokens=50, seconds=2.0, call_hash="")
    turns = (TurnPlan(tokens=300, tool=tool), TurnPlan(tokens=200, tool=None))
    result = run(FixedWorkload(turns, group_size=4))
    first = 4 * 100 * 1e-4 + DECODE.seconds(300, 4, 4 * 100)
    second = 4 * 50 * 1e-4 + DECODE.seconds(200, 4, 4 * 450)
    assert result.seconds == pytest.approx(1.0 + first + 2.0 + second + 5.0)


def test_slots_serve_in_waves() -> None:
    result = run(FixedWorkload((TurnPlan(tokens=400, tool=None),), group_size=8), slots=4)
    wave = 4 * 100 * 1e-4 + DECODE.seconds(400, 4, 4 * 100)
    assert result.seconds == pytest.approx(1.0 + 2 * wave + 5.0)


def test_equal_workers_share_equally() -> None:
    one = FixedWorkload((TurnPlan(tokens=400, tool=None),), group_size=8)
    both = run(one, num_workers=2)
    assert {stats.decoded_tokens for stats in both.workers.values()} == {4 * 400}


@pytest.mark.parametrize("kv_tokens", [10**9, 45_000])
@pytest.mark.parametrize(
    "faults", [FaultModel(), FaultModel(worker_mean_life_s=100.0, box_failure=0.02)]
)
def test_skipping_and_stepping_clusters_agree(faults: FaultModel, kv_tokens: int) -> None:
    workload = AgentWorkload(model=PRESETS["search"], seed=4, group_size=8)
    fast, slow = (
        run(
            workload,
            num_workers=2,
            slots=8,
            kv_tokens=kv_tokens,
            num_steps=2,
            groups=2,
            faults=faults,
            make_worker=make,
        )
        for make in (SkippingWorker, StepwiseWorker)
    )
    assert fast.seconds == pytest.approx(slow.seconds)
    assert [e.plan.trajectory_id for e in fast.ended] == [e.plan.trajectory_id for e in slow.ended]
    assert [e.ended_t for e in fast.ended] == pytest.approx([e.ended_t for e in slow.ended])
    assert fast.num_events == slow.num_events
    assert fast.num_lost_attempts == slow.num_lost_attempts


def test_same_arguments_same_run() -> None:
    first, second = (
        run(
            AgentWorkload(model=PRESETS["math"], seed=2, group_size=4),
            num_workers=3,
            groups=3,
            faults=FaultModel(worker_mean_life_s=200.0),
        )
        for _ in range(2)
    )
    assert first.ended == second.ended
    assert first.num_events == second.num_events
