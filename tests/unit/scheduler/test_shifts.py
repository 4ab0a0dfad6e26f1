"""Shifts through the scheduler: out of the routing set at once, back by the right generation only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from scheduler_driver import Driver

from scheduler.decisions import (
    CancelShift,
    Duty,
    Evict,
    HandoffEnded,
    HandoffOrder,
    Outcome,
    Place,
    Requeue,
    RequeueReason,
    Shift,
    StartStep,
)
from scheduler.events import (
    BatchReady,
    Finished,
    HandoffFailed,
    HandoffStage,
    PreemptionNotice,
    Published,
    Role,
    RunStarted,
    Stage,
    StepEnded,
    StepStarted,
    Submitted,
    Tick,
    WorkerLost,
)
from scheduler.policies import ShiftPlan
from scheduler.views import ShiftView, TrajectoryView, WorkerView


@dataclass
class Scripted:
    """Plans that a test has put down; each is offered once."""

    num_weighed = 0

    plans: list[ShiftPlan] = field(default_factory=list)
    finishing: set[str] = field(default_factory=set)
    views: list[ShiftView] = field(default_factory=list)

    def plan(self, view: ShiftView) -> ShiftPlan | None:
        self.views.append(view)
        return self.plans.pop() if self.plans else None

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        return trajectory.trajectory_id in self.finishing


@pytest.fixture
def policy() -> Scripted:
    return Scripted()


@pytest.fixture
def run(policy: Scripted) -> Driver:
    run = Driver(shifting=policy)
    run.worker("w0", slots=4)
    run.worker("w1", slots=4)
    run.send(RunStarted)
    return run


def duty(worker_id: str, role: Role) -> Duty:
    return Duty(role=role, accelerators=frozenset({worker_id}))


def shift(run: Driver, policy: Scripted, **roles: Role) -> Any:
    policy.plans = [ShiftPlan(moves={name: duty(name, role) for name, role in roles.items()})]
    return run.send(Tick)


def of_kind(decisions: Any, kind: type) -> Any:
    return [decision for decision in decisions if isinstance(decision, kind)]


def stages(run: Driver, worker_id: str, generation: int, *names: Stage) -> Any:
    decisions: Any = ()
    for stage in names:
        decisions = run.send(
            HandoffStage, worker_id=worker_id, generation=generation, stage=stage, version=0
        )
    return decisions


TO_WARM = (Stage.QUIESCE, Stage.RELEASE, Stage.ACQUIRE, Stage.LOAD)


def judge(run: Driver, name: str) -> Any:
    run.send(Submitted, trajectory_id=name, group_id="g0", role=Role.GENRM)
    return run.ready(name)


def test_shifting_worker_leaves_the_routing_set_and_its_turns_go_elsewhere(
    run: Driver, policy: Scripted
) -> None:
    run.submit("a")
    (place,) = run.ready("a")
    assert place.worker_id == "w0"
    began, requeue, order = shift(run, policy, w0=Role.GENRM)
    assert isinstance(began, Shift)
    assert (began.worker_generation, began.generation) == (0, 1)
    assert isinstance(requeue, Requeue)
    assert requeue.reason is RequeueReason.SHIFT
    assert isinstance(order, HandoffOrder)
    assert order.stage is Stage.QUIESCE
    assert run.num_decoding == 0
    (place,) = run.ready("a", generation=1)
    assert place.worker_id == "w1"
    for name in "bcd":
        run.submit(name)
        assert [p.worker_id for p in run.ready(name)] == ["w1"]


def test_turn_that_may_end_keeps_its_slot_until_the_release(run: Driver, policy: Scripted) -> None:
    for name in "ab":
        run.submit(name)
        run.ready(name)
    policy.finishing = {"a"}
    assert of_kind(shift(run, policy, w0=Role.GENRM), Requeue) == []
    assert run.num_decoding == 2
    run.finish_turn("a")
    assert run.num_decoding == 1
    run.submit("c")
    run.ready("c")
    policy.finishing = {"c"}
    decisions = stages(run, "w0", 1, Stage.QUIESCE)
    assert [decision.stage for decision in decisions] == [Stage.RELEASE]


def test_turn_left_at_the_release_is_requeued(run: Driver, policy: Scripted) -> None:
    run.submit("a")
    run.ready("a")
    policy.finishing = {"a"}
    shift(run, policy, w0=Role.GENRM)
    order, requeue = stages(run, "w0", 1, Stage.QUIESCE)
    assert order.stage is Stage.RELEASE
    assert requeue.trajectory_id == "a"
    assert run.num_decoding == 0


def test_judging_goes_to_judges_only_and_is_not_counted(run: Driver, policy: Scripted) -> None:
    assert judge(run, "j0") == ()
    shift(run, policy, w0=Role.GENRM)
    stages(run, "w0", 1, *TO_WARM)
    ended, place = run.worker("w0", generation=1, slots=1, role=Role.GENRM)
    assert isinstance(ended, HandoffEnded)
    assert ended.outcome is Outcome.COMPLETED
    assert isinstance(place, Place)
    assert (place.trajectory_id, place.worker_id, place.worker_generation) == ("j0", "w0", 1)
    assert judge(run, "j1") == ()
    run.finish_turn("j0")
    run.send(Finished, trajectory_id="j0", tokens=10)
    run.submit("a")
    assert [p.worker_id for p in run.ready("a")] == ["w1"]
    assert run.views["a"][-1].siblings_finished == ()


def test_only_the_generation_of_the_handoff_comes_back(run: Driver, policy: Scripted) -> None:
    shift(run, policy, w0=Role.GENRM)
    assert run.worker("w0", generation=0) == ()
    stages(run, "w0", 1, *TO_WARM)
    assert run.worker("w0", generation=0) == ()
    judge(run, "j")
    assert len(of_kind(run.worker("w0", generation=1, role=Role.GENRM), Place)) == 1


@pytest.mark.parametrize("generation", [1, 7])
def test_process_that_appears_in_the_middle_is_a_new_one(
    run: Driver, policy: Scripted, generation: int
) -> None:
    shift(run, policy, w0=Role.GENRM)
    stages(run, "w0", 1, Stage.QUIESCE)
    (ended,) = run.worker("w0", generation=generation)
    assert ended.outcome is Outcome.LOST
    assert stages(run, "w0", 1, Stage.RELEASE) == ()
    assert len(policy.views[-1].members) == 2


def test_worker_lost_on_the_way_ends_the_handoff(run: Driver, policy: Scripted) -> None:
    shift(run, policy, w0=Role.GENRM)
    stages(run, "w0", 1, Stage.QUIESCE)
    assert run.send(WorkerLost, worker_id="w0", generation=0) == ()
    (ended,) = run.send(WorkerLost, worker_id="w0", generation=1)
    assert ended.outcome is Outcome.LOST
    run.worker("w0", generation=2)
    assert policy.views[-1].open_shifts == ()


def test_failed_quiesce_rolls_back_and_the_worker_serves_again(
    run: Driver, policy: Scripted
) -> None:
    shift(run, policy, w0=Role.GENRM)
    failed = {"worker_id": "w0", "generation": 1, "stage": Stage.QUIESCE}
    (ended,) = run.send(HandoffFailed, **failed)
    assert (ended.outcome, ended.generation) == (Outcome.ROLLED_BACK, 2)
    run.submit("a")
    assert [p.worker_id for p in run.ready("a")] == ["w1"]
    run.worker("w0", generation=2, slots=4)
    run.submit("b")
    assert [p.worker_id for p in run.ready("b")] == ["w0"]


def test_deadlines_are_acted_on_with_ticks(run: Driver, policy: Scripted) -> None:
    shift(run, policy, w0=Role.GENRM)
    run.log.extend([run.log[-1]] * 8 * 60)
    (ended,) = run.send(Tick)
    assert ended.outcome is Outcome.ROLLED_BACK


def test_cancelled_shift_rolls_back(run: Driver, policy: Scripted) -> None:
    shift(run, policy, w0=Role.GENRM)
    policy.plans = [ShiftPlan(cancels=("w0", "w1"))]
    cancel, ended = run.send(Tick)
    assert isinstance(cancel, CancelShift)
    assert ended.outcome is Outcome.ROLLED_BACK


def test_shift_called_off_too_late_is_undone_once_it_serves(run: Driver, policy: Scripted) -> None:
    shift(run, policy, w0=Role.GENRM)
    stages(run, "w0", 1, Stage.QUIESCE, Stage.RELEASE, Stage.ACQUIRE)
    policy.plans = [ShiftPlan(cancels=("w0",))]
    assert of_kind(run.send(Tick), Shift) == []
    stages(run, "w0", 1, Stage.LOAD)
    ended, back, order = run.worker("w0", generation=1, role=Role.GENRM)
    assert ended.duty.role is Role.GENRM
    assert back.target.role is order.duty.role is Role.ROLLOUT
    assert order.generation == 2


def test_evicted_worker_gets_nothing_until_it_is_ready_again(run: Driver) -> None:
    run.submit("a")
    run.ready("a")
    evict, requeue = run.send(PreemptionNotice, worker_id="w0", generation=0, deadline_s=30.0)
    assert isinstance(evict, Evict)
    assert isinstance(requeue, Requeue)
    assert run.send(PreemptionNotice, worker_id="w0", generation=0, deadline_s=30.0) == ()
    for name in "bcdef":
        run.submit(name)
        run.ready(name)
    assert run.num_decoding == 4
    assert of_kind(run.worker("w0", generation=1), Place)[0].worker_id == "w0"


def test_step_waits_for_trainers_on_their_way(run: Driver, policy: Scripted) -> None:
    assert run.send(BatchReady, step=0, tokens=1000) == ()
    assert of_kind(shift(run, policy, w0=Role.TRAINING), StartStep) == []
    assert of_kind(run.worker("t", role=Role.TRAINING), StartStep) == []
    stages(run, "w0", 1, *TO_WARM)
    (start,) = of_kind(run.worker("w0", generation=1, role=Role.TRAINING), StartStep)
    assert (start.step, set(start.workers)) == (0, {"t", "w0"})
    assert run.send(Tick) == ()


def test_step_takes_the_largest_valid_number_of_workers() -> None:
    run = Driver(training_sizes=(2, 4))
    run.send(RunStarted)
    run.worker("t0", role=Role.TRAINING)
    assert run.send(BatchReady, step=0) == ()
    (start,) = run.worker("t1", role=Role.TRAINING)
    assert start.workers == ("t0", "t1")
    run.worker("t2", role=Role.TRAINING)
    run.send(StepStarted, step=0)
    run.send(StepEnded, step=0, seconds=3.0)
    (start,) = run.send(BatchReady, step=1)
    assert start.workers == ("t0", "t1")


def test_training_worker_leaves_between_steps_only(run: Driver, policy: Scripted) -> None:
    run.worker("t", role=Role.TRAINING)
    run.send(BatchReady, step=0)
    assert shift(run, policy, t=Role.ROLLOUT) == ()
    run.send(StepStarted, step=0)
    assert shift(run, policy, t=Role.ROLLOUT) == ()
    run.send(StepEnded, step=0, seconds=3.0)
    assert len(of_kind(shift(run, policy, t=Role.ROLLOUT), Shift)) == 1


def test_role_with_work_keeps_a_worker(run: Driver, policy: Scripted) -> None:
    run.submit("a")
    assert shift(run, policy, w0=Role.GENRM, w1=Role.GENRM) == ()
    run.send(Finished, trajectory_id="a", tokens=1)
    assert len(of_kind(shift(run, policy, w0=Role.GENRM, w1=Role.GENRM), Shift)) == 2


def test_load_names_the_newest_version(run: Driver, policy: Scripted) -> None:
    shift(run, policy, w0=Role.TRAINING)
    run.send(Published, version=1)
    (load,) = stages(run, "w0", 1, Stage.QUIESCE, Stage.RELEASE, Stage.ACQUIRE)
    assert (load.stage, load.version) == (Stage.LOAD, 1)
    (again,) = stages(run, "w0", 1, Stage.LOAD)
    assert again.stage is Stage.LOAD


def test_view_counts_demand_by_role(run: Driver, policy: Scripted) -> None:
    for name in "abc":
        run.submit(name)
    run.ready("a")
    run.ready("b")
    run.finish_turn("b")
    judge(run, "j")
    run.send(Tick)
    view = policy.views[-1]
    rollout = view.demand("main", Role.ROLLOUT)
    assert (rollout.waiting, rollout.decoding, rollout.resting) == (0, 1, 2)
    assert view.demand("main", Role.GENRM).waiting_tokens == 100
    assert view.demand("main", Role.TRAINING).total == 0
    assert [m.worker.worker_id for m in view.serving("main", Role.ROLLOUT)] == ["w0", "w1"]


def test_turn_that_nobody_can_serve_asks_for_a_plan_at_once(run: Driver, policy: Scripted) -> None:
    asked = len(policy.views)
    run.submit("a")
    run.ready("a")
    assert len(policy.views) == asked, "a turn that has its worker is no reason to plan"
    policy.plans = [ShiftPlan(moves={"w1": duty("w1", Role.GENRM)})]
    assert len(of_kind(judge(run, "j0"), Shift)) == 1
    asked = len(policy.views)
    judge(run, "j1")
    assert len(policy.views) == asked, "somebody is on the way already"
