from collections.abc import Sequence
from typing import Any

import pytest
from scheduler_driver import Driver

from scheduler.admission import OverSample
from scheduler.decisions import Admit, Cut, Place, Prewarm, Requeue
from scheduler.events import (
    REJECTED_S,
    Failed,
    FailureKind,
    Finished,
    GroupAccepted,
    GroupRejected,
    PlaceRejected,
    PreemptionNotice,
    Published,
    Role,
    RunStarted,
    Tick,
    ToolReturned,
    ToolStarted,
    ToolStatus,
    WeightsLoaded,
    WorkerLost,
    WorkerReady,
)
from scheduler.views import TrajectoryView, WorkerView


def placed(decisions: Any) -> list[tuple[str, str]]:
    return [(d.trajectory_id, d.worker_id) for d in decisions if isinstance(d, Place)]


def admitted(decisions: Any) -> int:
    return sum(d.num_groups for d in decisions if isinstance(d, Admit))


# ------------------------------------------------------------------------------------ admission


def test_synchronous_run_admits_by_version_and_replaces_rejected_groups() -> None:
    run = Driver()
    assert admitted(run.send(RunStarted)) == 2
    assert admitted(run.send(GroupAccepted, group_id="g0")) == 0
    assert admitted(run.send(GroupRejected, group_id="g1")) == 1
    assert admitted(run.send(GroupAccepted, group_id="g2")) == 0
    assert admitted(run.send(Published, version=1)) == 2


def test_whole_run_accepts_exactly_its_steps() -> None:
    run = Driver()
    total = admitted(run.send(RunStarted))
    for version in (1, 2, 3):
        for _ in range(2):
            assert admitted(run.send(GroupAccepted, group_id=f"g{total}")) == 0
        total += admitted(run.send(Published, version=version))
    assert total == 6


def test_resume_counts_what_was_accepted_and_what_is_still_open() -> None:
    run = Driver()
    decisions = run.send(RunStarted, version=1, accepted_groups=2, running_groups=1)
    assert admitted(decisions) == 1


def test_evaluation_is_placed_and_not_counted() -> None:
    run = Driver()
    run.worker()
    run.send(RunStarted)
    run.submit("e0", is_eval=True)
    assert placed(run.ready("e0")) == [("e0", "w0")]
    assert admitted(run.send(GroupAccepted, group_id="g0")) == 0


def test_over_sampled_rest_is_cut_once_a_step() -> None:
    run = Driver(admission=OverSample(groups_per_step=2, num_steps=2, factor=2.0))
    assert admitted(run.send(RunStarted)) == 4
    run.submit("left", group_id="g2")
    run.submit("evaluation", group_id="e", is_eval=True)
    assert run.send(GroupAccepted, group_id="g0") == ()
    (cut,) = run.send(GroupAccepted, group_id="g1")
    assert isinstance(cut, Cut)
    assert cut.trajectory_id == "left"
    assert run.send(GroupRejected, group_id="g2") == ()
    assert run.send(GroupRejected, group_id="g3") == ()
    assert admitted(run.send(Published, version=1)) == 4


# ------------------------------------------------------------------------------------ placement


def test_turn_waits_for_a_slot_and_goes_first_come_first_served() -> None:
    run = Driver()
    for name in "abc":
        run.submit(name)
    assert placed(run.ready("a")) == []
    assert placed(run.worker()) == [("a", "w0")]
    assert placed(run.ready("b")) == []
    assert placed(run.ready("c")) == []
    assert placed(run.finish_turn("a")) == [("b", "w0")]
    assert placed(run.ready("a", turn=1)) == []
    assert placed(run.finish_turn("b")) == [("c", "w0")]


def test_place_names_the_generations_it_is_based_on() -> None:
    run = Driver()
    run.worker(generation=3)
    run.submit("a", generation=5)
    (place,) = run.ready("a", turn=2, generation=5)
    assert (place.generation, place.turn, place.worker_generation) == (5, 2, 3)


def test_new_worker_serves_all_it_has_slots_for() -> None:
    run = Driver()
    for name in "abc":
        run.submit(name)
        run.ready(name)
    assert placed(run.worker(slots=2)) == [("a", "w0"), ("b", "w0")]


def test_only_rollout_workers_of_the_job_serve_it() -> None:
    run = Driver()
    run.send(WorkerReady, worker_id="j", role=Role.GENRM, max_running=4)
    run.send(WorkerReady, worker_id="o", role=Role.ROLLOUT, max_running=4, job="other")
    run.submit("a")
    assert placed(run.ready("a")) == []
    assert placed(run.worker()) == [("a", "w0")]


@pytest.mark.parametrize("end", ["finished", "failed", "newer attempt"])
@pytest.mark.parametrize("phase", ["resting", "waiting", "decoding", "lost"])
def test_ending_in_any_phase_leaks_nothing(phase: str, end: str) -> None:
    run = Driver()
    if phase != "waiting":
        run.worker()
    run.submit("a")
    if phase != "resting":
        run.ready("a")
    if phase == "lost":
        run.send(WorkerLost, worker_id="w0")
    match end:
        case "finished":
            run.send(Finished, trajectory_id="a", tokens=3)
        case "failed":
            run.send(Failed, trajectory_id="a", kind=FailureKind.INFRA)
        case "newer attempt":
            run.submit("a", generation=1)
            run.send(Finished, trajectory_id="a", generation=1, tokens=3)
    assert run.scheduler.demands() == {}
    assert run.num_running == 0
    run.submit("b")
    first = run.ready("b")
    assert placed(first or run.worker("w1")) != []


# ------------------------------------------------------------------------------------ losing workers


def test_lost_worker_requeues_its_turns_and_the_runner_asks_again() -> None:
    run = Driver()
    run.worker("w0")
    run.submit("a")
    run.ready("a")
    run.worker("w1")
    (requeue,) = run.send(WorkerLost, worker_id="w0")
    assert isinstance(requeue, Requeue)
    assert (requeue.trajectory_id, requeue.generation) == ("a", 0)
    assert placed(run.ready("a", generation=1)) == [("a", "w1")]


def test_runner_may_notice_the_loss_first() -> None:
    run = Driver()
    run.worker("w0")
    run.submit("a")
    run.ready("a")
    assert placed(run.ready("a", generation=1)) == [("a", "w0")]
    assert len(run.send(WorkerLost, worker_id="w0")) == 1
    run.worker("w1")
    assert placed(run.ready("a", generation=2)) == [("a", "w1")]


def test_turn_that_ended_before_the_loss_was_known_still_counts() -> None:
    run = Driver()
    run.worker("w0")
    run.submit("a")
    run.ready("a")
    run.send(WorkerLost, worker_id="w0")
    run.finish_turn("a")
    run.worker("w1")
    assert placed(run.ready("a", turn=1)) == [("a", "w1")]
    assert run.views["a"][-1].turn_tokens == (10,)


def test_restarted_worker_gives_up_what_its_old_generation_ran() -> None:
    run = Driver()
    run.worker("w0", generation=0)
    run.submit("a")
    run.ready("a")
    assert [type(d) for d in run.worker("w0", generation=1)] == [Requeue]
    assert run.num_running == 0


def test_messages_of_old_generations_change_nothing() -> None:
    run = Driver()
    run.worker("w0", generation=2)
    run.submit("a", generation=1)
    run.ready("a", generation=1)
    assert run.finish_turn("a", generation=0) == ()
    assert run.submit("a", generation=1) == ()
    assert run.send(Failed, trajectory_id="a", generation=0, kind=FailureKind.INFRA) == ()
    assert run.send(WorkerLost, worker_id="w0", generation=1) == ()
    assert run.worker("w0", generation=1) == ()
    assert run.send(WeightsLoaded, worker_id="w0", generation=1, version=9) == ()
    assert run.num_running == 1
    assert [worker.policy_version for worker in run.scheduler.members()] == [0]
    run.finish_turn("a", generation=1)
    assert run.views["a"][-1].turn_tokens == (10,), "once"


def rejected_turn() -> Driver:
    run = Driver()
    run.worker("w0")
    run.submit("a")
    run.ready("a")
    rejected = {"trajectory_id": "a", "turn": 0, "worker_id": "w0", "worker_generation": 0}
    assert run.send(PlaceRejected, **rejected) == ()
    return run


def tick_until(run: Driver, t: float) -> list[Any]:
    """What is decided with the Tick of that time, and nothing with any before it."""
    while len(run.log) / 8 < t:
        assert run.send(Tick) == ()
    return list(run.send(Tick))


def test_rejected_place_goes_elsewhere_and_the_worker_waits_for_its_next_ready() -> None:
    run = rejected_turn()
    run.submit("b")
    assert placed(run.ready("b")) == []
    assert placed(run.worker("w0", generation=1)) == [("a", "w0")]


def test_a_worker_that_was_rejected_is_tried_again_after_a_while() -> None:
    """One runner may have been alone in not reaching it, and nobody raises its generation."""
    run = rejected_turn()
    until_t = run.log[-1].event.t + REJECTED_S
    assert placed(tick_until(run, until_t)) == [("a", "w0")]


def test_a_rejected_worker_that_leaves_stays_out_of_service() -> None:
    run = rejected_turn()
    until_t = run.log[-1].event.t + REJECTED_S
    run.send(PreemptionNotice, worker_id="w0", generation=0, deadline_s=60.0)
    assert tick_until(run, until_t + 1.0) == []


def test_cache_home_is_remembered_across_turns() -> None:
    run = Driver()
    run.worker("w0", slots=4)
    run.worker("w1", slots=4)
    run.submit("a")
    run.ready("a")
    run.finish_turn("a")
    run.submit("b")
    run.ready("b")
    run.ready("a", turn=1)
    asking, _ = run.views["a"][-2:]
    assert asking.home_id == "w0"


def test_views_tell_what_happened() -> None:
    run = Driver()
    run.worker()
    run.submit("a", task_family="trail", prompt_tokens=90)
    run.ready("a")
    run.finish_turn("a")
    view = run.views["a"][-1]
    assert (view.tokens, view.context_tokens, view.turn) == (10, 110, 0)
    run.send(
        ToolReturned,
        trajectory_id="a",
        turn=0,
        call_id="c0",
        tool="shell",
        status=ToolStatus.ERROR,
        size_tokens=7,
        seconds=0.5,
    )
    run.ready("a", turn=1)
    assert [(fact.tool, fact.status) for fact in run.views["a"][-1].tools] == [
        ("shell", ToolStatus.ERROR)
    ]


def test_order_of_events_is_checked() -> None:
    run = Driver()
    run.scheduler.on(Tick(t=1.0, seq=1))
    with pytest.raises(AssertionError, match="seq"):
        run.scheduler.on(Tick(t=1.0, seq=1))
    with pytest.raises(AssertionError, match="time"):
        run.scheduler.on(Tick(t=0.5, seq=2))


def test_a_context_is_computed_ahead_only_for_the_attempt_as_it_is() -> None:
    class Always:
        def prewarm(
            self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
        ) -> WorkerView | None:
            return workers[-1]

    run = Driver(prewarming=Always())
    run.worker("w0", slots=2)
    run.worker("w1", generation=3, slots=2)
    run.submit("a")
    run.ready("a", generation=1)
    run.finish_turn("a", generation=1)
    late = run.send(ToolStarted, trajectory_id="a", generation=0, turn=0, call_id="c", tool="t")
    assert late == ()
    (prewarm,) = run.send(
        ToolStarted, trajectory_id="a", generation=1, turn=0, call_id="c", tool="t"
    )
    assert isinstance(prewarm, Prewarm)
    assert (prewarm.worker_id, prewarm.worker_generation, prewarm.generation) == ("w1", 3, 1)
    assert run.num_running == 0
