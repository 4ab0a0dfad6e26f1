"""Elastic fleets in simulation: closed forms, the sweep of static layouts, and files about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.costs import TrainCost, libra_shapes
from scheduler.decisions import Shift
from scheduler.events import HandoffStage, Role, Stage
from scheduler.policies import ShiftPlan
from scheduler.routing.least_load import LeastLoad
from scheduler.sim.cluster import Cluster
from scheduler.sim.elastic import ElasticSettings, ModelSettings, layout_name
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.fuzz_shifts import RandomShiftingRun
from scheduler.sim.judging import JudgeModel
from scheduler.sim.report import rows_of
from scheduler.sim.run import Choice, compare, simulate, workload_of
from scheduler.sim.settings import SimulationSettings, read_settings
from scheduler.sim.specs import Elasticity, PlannerCost, StageTimes, StepSpec, WorkerSpec
from scheduler.sim.workload import AttemptPlan, TurnPlan
from scheduler.views import ShiftView, TrajectoryView, WorkerView

MODEL = {"model": "qwen3-8b-tp1", "kv_tokens": 100_000}


def small(**changes: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "agents": {"preset": "search", "group_size": 4},
        "steps": {"num_steps": 2, "groups_per_step": 3},
        "max_running": 8,
        "layouts": {"split": {"rollout": 2, "genrm": 1, "training": 1}},
        "elastic": {
            "workers": 4,
            "rollout": MODEL,
            "genrm": MODEL,
            "judge": {"tokens": 100, "sigma": 0.3},
            "train_token_us": 500,
            "training_sizes": [1, 2],
        },
        "policies": {"static": [{}], "pay_back": [{}], "colocated_phases": [{}]},
        "baseline": "static",
        "seeds": 2,
        "tuning_seeds": 1,
        **changes,
    }


def settings(**changes: Any) -> SimulationSettings:
    return read_settings(small(**changes))


def test_static_is_tried_in_every_split_and_the_others_on_their_layouts() -> None:
    assert set(settings().choices("static")) == {
        "2 rollout 1 genrm 1 training",
        "1 rollout 2 genrm 1 training",
        "1 rollout 1 genrm 2 training",
    }
    assert settings().choices("pay_back") == ["split"]
    assert settings().layout("split")[Role.ROLLOUT] == 2
    assert layout_name({Role.ROLLOUT: 3, Role.TRAINING: 1}) == "3 rollout 1 training"


def test_comparison_is_against_the_best_static_split() -> None:
    comparison = compare(settings(), workload_of(settings()))
    rows = {row.policy: row for row in rows_of(comparison)}
    assert rows["static"].vs_baseline.mean == 1.0
    assert rows["static"].shifts == 0 < rows["pay_back"].shifts
    static = next(result for result in comparison.results if result.policy == "static")
    assert static.seconds_by_fleet[static.choice.fleet] == min(static.seconds_by_fleet.values())
    assert all(0 <= row.bubble <= 1 for row in rows.values())


def test_same_seed_same_run() -> None:
    choice = Choice(fleet="split", variant={})
    first, second = (
        simulate(settings(), workload_of(settings()), "pay_back", choice, 3) for _ in range(2)
    )
    assert first.step_ends == second.step_ends
    assert first.num_shifts == second.num_shifts > 0


def test_steps_take_what_their_tokens_cost_on_their_workers() -> None:
    one, two = (
        simulate(
            settings(),
            workload_of(settings()),
            "static",
            Choice(fleet=f"1 rollout {3 - n} genrm {n} training", variant={}),
            0,
        )
        for n in (1, 2)
    )
    fixed = (
        2
        * ElasticSettings(
            workers=1, rollout=ModelSettings(model="qwen3-8b-tp1"), train_token_us=0.0
        ).train_fixed_s
    )
    assert (one.train_seconds - fixed) == pytest.approx(two.train_seconds - 2 * fixed)
    assert one.num_judged == two.num_judged == 2 * 3 * 4


def test_costs_in_closed_form() -> None:
    assert TrainCost(per_token=0.01, fixed_s=2.0).seconds(1000, 5) == pytest.approx(4.0)
    single = ModelSettings(model="qwen3-8b-tp1").shape(1).decode
    double = ModelSettings(model="qwen3-8b-tp1", replicas=2).shape(2).decode
    assert double.step_seconds(64, 10_000) == pytest.approx(single.step_seconds(32, 5_000))
    times = StageTimes()
    assert times.total_s(Role.ROLLOUT, Role.GENRM) == pytest.approx(5.2)
    assert times.total_s(Role.TRAINING, Role.ROLLOUT) == pytest.approx(10.2)


def test_judgement_of_an_attempt_is_the_same_in_every_run() -> None:
    plan = AttemptPlan(
        group_id="g7",
        sibling=1,
        task_family="t",
        prompt_tokens=10,
        start_seconds=1.0,
        turns=(TurnPlan(tokens=90, tool=None),),
    )
    judge = JudgeModel(tokens=500, rubric_tokens=50, swing=3.0, swing_groups=7)
    request = judge.request(plan, seed=1)
    assert request == judge.request(plan, seed=1) != judge.request(plan, seed=2)
    assert request.prompt_tokens == 150
    calm = JudgeModel(tokens=500, rubric_tokens=50).request(plan, seed=1)
    assert request.tokens == pytest.approx(3 * calm.tokens, abs=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layouts": {}}, "layouts go with"),
        ({"elastic": {**small()["elastic"], "colour": 1}}, "no key"),
        ({"elastic": {"workers": 4, "rollout": MODEL}}, "lacks"),
        ({"layouts": {"x": {"judge": 1}}}, "judge"),
        (
            {"layouts": {"x": {"rollout": 4}}, "policies": {"static": [{}], "kv_rule": [{}]}},
            "no layout",
        ),
    ],
)
def test_wrong_files_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**change)


class MergeOnce:
    """Two narrow workers become a wide one, as soon as both are there."""

    num_weighed = 0

    def __init__(self) -> None:
        self.is_done = False

    def plan(self, view: ShiftView) -> ShiftPlan | None:
        if self.is_done or len(view.members) < 2:
            return None
        self.is_done = True
        wide, gone = (member.duty for member in view.members[:2])
        both = wide.accelerators | gone.accelerators
        return ShiftPlan(
            moves={
                view.members[0].worker.worker_id: replace(wide, bucket="tp2", accelerators=both),
                view.members[1].worker.worker_id: replace(gone, accelerators=frozenset()),
            }
        )

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        return False


def test_change_of_parallelism_is_a_shift_too() -> None:
    """Two workers merge before the first turn is asked for; the run is that of the wide one."""
    shapes = libra_shapes()
    plans = tuple(
        AttemptPlan(
            group_id="g0",
            sibling=i,
            task_family="t",
            prompt_tokens=100,
            start_seconds=60.0,
            turns=(TurnPlan(tokens=300, tool=None),),
        )
        for i in range(4)
    )
    result = Cluster(
        workers=[
            WorkerSpec(
                worker_id=f"w{i}",
                bucket="tp1",
                shape=shapes[1],
                max_running=8,
                accelerators=(f"gpu{i}",),
            )
            for i in range(2)
        ],
        steps=StepSpec(num_steps=1, groups_per_step=1),
        workload=OneGroup(plans),
        scheduler=Scheduler(
            routing=LeastLoad(),
            admission=CapacityAdmission(groups_per_step=1, num_steps=1, max_running_groups=1),
            shifting=MergeOnce(),
        ),
        faults=Faults(FaultModel(), np.random.default_rng(0)),
        elasticity=Elasticity(shapes={(Role.ROLLOUT, "tp2", 2): shapes[2]}, max_running=8),
    ).run(limit_s=1000.0)
    wide = shapes[2]
    prefill_s = wide.prefill.seconds(4 * 100, 0)
    assert result.seconds == pytest.approx(60.0 + prefill_s + wide.decode.seconds(300, 4, 400))
    assert result.num_shifts == 2


class OneGroup:
    def __init__(self, plans: tuple[AttemptPlan, ...]) -> None:
        self._plans = plans

    def group(self, index: int) -> tuple[AttemptPlan, ...]:
        return self._plans


@pytest.mark.parametrize("planner_s", [0.0, 2.0])
def test_a_plan_takes_effect_when_its_planner_is_done(planner_s: float) -> None:
    run = RandomShiftingRun(5, has_faults=False)
    run.policy = "colocated_phases"
    run.planner = PlannerCost(per_plan_us=1e6 * planner_s)
    run.play()
    begun = {
        (decision.worker_id, decision.generation): decision.t
        for entry in run.log
        for decision in entry.decisions
        if isinstance(decision, Shift)
    }
    lags = [
        entry.event.t - begun[entry.event.worker_id, entry.event.generation]
        for entry in run.log
        if isinstance(entry.event, HandoffStage) and entry.event.stage is Stage.QUIESCE
    ]
    assert len(lags) > 5
    assert min(lags) >= planner_s
    assert min(lags) < planner_s + 0.5


def test_what_planning_takes_grows_with_what_is_weighed() -> None:
    cost = PlannerCost(per_plan_us=100.0, per_candidate_us=10.0, per_attempt_us=1.0)
    assert cost.seconds(2, 30, 500) == pytest.approx(1e-6 * (2 * (100 + 500) + 300))
    assert cost.seconds(0, 0, 500) == 0.0
