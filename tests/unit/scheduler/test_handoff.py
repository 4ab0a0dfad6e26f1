from __future__ import annotations

import pytest

from scheduler.decisions import Duty, HandoffEnded, HandoffOrder, Outcome, Shift
from scheduler.events import Role, Stage
from scheduler.handoff import Answer, HandoffBook


def duty(*accelerators: str, role: Role = Role.ROLLOUT) -> Duty:
    return Duty(role=role, accelerators=frozenset(accelerators))


@pytest.fixture
def book() -> HandoffBook:
    book = HandoffBook()
    for i in range(3):
        book.join(f"w{i}", 0, duty(f"gpu{i}"))
    return book


def stage_of(answers: list[Answer]) -> Stage:
    (order,) = answers
    assert isinstance(order, HandoffOrder)
    return order.stage


def outcome_of(answers: list[Answer]) -> Outcome:
    ended = answers[0]
    assert isinstance(ended, HandoffEnded)
    return ended.outcome


def walk(book: HandoffBook, worker_id: str, *stages: Stage, t: float = 1.0) -> list[Answer]:
    """Report stages done, one after another; the answers to the last."""
    answers: list[Answer] = []
    for stage in stages:
        generation = book.generation(worker_id)
        assert generation is not None
        answers = book.done(t, worker_id, generation, stage)
    return answers


def test_whole_way_to_the_new_role(book: HandoffBook) -> None:
    shift, order = book.begin(0.0, {"w0": duty("gpu0", role=Role.GENRM)})
    assert isinstance(shift, Shift)
    assert (shift.worker_generation, shift.generation) == (0, 1)
    assert (shift.source.role, shift.target.role) == (Role.ROLLOUT, Role.GENRM)
    assert stage_of([order]) is Stage.QUIESCE
    assert not book.is_serving("w0")
    assert book.generation("w0") == 1
    for stage, following in (
        (Stage.QUIESCE, Stage.RELEASE),
        (Stage.RELEASE, Stage.ACQUIRE),
        (Stage.ACQUIRE, Stage.LOAD),
        (Stage.LOAD, Stage.WARM),
    ):
        assert stage_of(walk(book, "w0", stage)) is following
    assert outcome_of(walk(book, "w0", Stage.WARM)) is Outcome.COMPLETED
    assert book.is_serving("w0")
    assert book.leases.owner("gpu0") == "w0"


def test_messages_of_another_generation_or_stage_change_nothing(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu0", role=Role.GENRM)})
    assert book.done(1.0, "w0", 0, Stage.QUIESCE) == []
    assert book.done(1.0, "w0", 1, Stage.WARM) == []
    assert book.done(1.0, "w1", 1, Stage.QUIESCE) == []
    assert stage_of(walk(book, "w0", Stage.QUIESCE)) is Stage.RELEASE


def test_swap_does_not_block_itself(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu1"), "w1": duty("gpu0")})
    assert walk(book, "w0", Stage.QUIESCE, Stage.RELEASE) == []
    answers = walk(book, "w1", Stage.QUIESCE, Stage.RELEASE)
    assert {order.worker_id for order in answers} == {"w0", "w1"}
    assert (book.leases.owner("gpu1"), book.leases.owner("gpu0")) == ("w0", "w1")


def test_two_narrow_workers_become_one_wide_one(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu0", "gpu1"), "w1": duty()})
    assert walk(book, "w0", Stage.QUIESCE, Stage.RELEASE) == []
    ended, acquire = walk(book, "w1", Stage.QUIESCE, Stage.RELEASE)
    assert isinstance(ended, HandoffEnded)
    assert isinstance(acquire, HandoffOrder)
    assert (ended.outcome, acquire.stage) == (Outcome.COMPLETED, Stage.ACQUIRE)
    assert book.leases.held_by("w0") == {"gpu0", "gpu1"}


@pytest.mark.parametrize(
    ("moves", "reason"),
    [
        ({"w0": duty("gpu1")}, "not leaving"),
        ({"w0": duty("gpu1"), "w1": duty("gpu1")}, "two workers want"),
        ({"w9": duty("gpu9")}, "not serving"),
    ],
)
def test_impossible_moves_are_refused(
    book: HandoffBook, moves: dict[str, Duty], reason: str
) -> None:
    assert reason in (book.refusal(moves) or "")


def test_claimed_accelerator_is_not_claimed_twice(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu1"), "w1": duty()})
    assert "claimed by w0" in (book.refusal({"w2": duty("gpu1")}) or "")


def test_cancel_before_release_serves_the_old_role(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu0", role=Role.GENRM)})
    (ended,) = book.cancel(1.0, "w0")
    assert isinstance(ended, HandoffEnded)
    assert (ended.outcome, ended.duty.role) == (Outcome.ROLLED_BACK, Role.ROLLOUT)
    assert ended.generation == book.generation("w0") == 2


def test_cancel_after_release_loads_the_old_role(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu0", role=Role.GENRM)})
    walk(book, "w0", Stage.QUIESCE, Stage.RELEASE)
    assert book.cancel(1.0, "w0") == []
    (ended,) = walk(book, "w0", Stage.ACQUIRE, Stage.LOAD, Stage.WARM)
    assert isinstance(ended, HandoffEnded)
    assert ended.duty.role is Role.ROLLOUT


def test_cancel_while_loading_hands_back_afterwards(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu0", role=Role.GENRM)})
    walk(book, "w0", Stage.QUIESCE, Stage.RELEASE, Stage.ACQUIRE)
    book.cancel(1.0, "w0")
    (ended,) = walk(book, "w0", Stage.LOAD, Stage.WARM)
    assert isinstance(ended, HandoffEnded)
    assert ended.duty.role is Role.GENRM
    assert book.take_returning() == {"w0": duty("gpu0")}
    assert book.take_returning() == {}


def test_aged_version_is_loaded_again_within_the_same_deadline(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu0", role=Role.TRAINING)})
    first = walk(book, "w0", Stage.QUIESCE, Stage.RELEASE, Stage.ACQUIRE)
    book.published("main", 3)
    (again,) = book.done(9.0, "w0", 1, Stage.LOAD, version=2)
    assert isinstance(again, HandoffOrder)
    assert (again.stage, again.version) == (Stage.LOAD, 3)
    assert again.deadline_t == first[0].deadline_t  # type: ignore[union-attr]
    assert stage_of(book.done(10.0, "w0", 1, Stage.LOAD, version=3)) is Stage.WARM


def test_time_out_before_release_rolls_back(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu0", role=Role.GENRM)})
    assert book.tick(59.0) == []
    assert outcome_of(book.tick(60.0)) is Outcome.ROLLED_BACK


def test_time_out_after_release_restarts_the_worker(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu0", role=Role.GENRM)})
    walk(book, "w0", Stage.QUIESCE, Stage.RELEASE, Stage.ACQUIRE)
    assert stage_of(book.tick(1000.0)) is Stage.RESTART
    assert book.done(1001.0, "w0", 1, Stage.LOAD) == []
    assert outcome_of(walk(book, "w0", Stage.RESTART)) is Outcome.RESTARTED


def test_unknown_outcome_keeps_the_lease_until_death_is_known(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu0", role=Role.GENRM)})
    walk(book, "w0", Stage.QUIESCE)
    book.tick(1000.0)
    assert outcome_of(book.tick(2000.0)) is Outcome.UNKNOWN
    assert book.leases.owner("gpu0") == "w0"
    assert "owned by w0" in (book.refusal({"w1": duty("gpu0")}) or "")
    book.worker_lost(2001.0, "w0")
    assert book.refusal({"w1": duty("gpu0")}) is None


def test_waiting_in_vain_goes_back_to_what_it_had(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu1"), "w1": duty()})
    walk(book, "w0", Stage.QUIESCE, Stage.RELEASE)
    book.cancel(2.0, "w1")
    assert stage_of(book.tick(500.0)) is Stage.RESTART
    assert book.leases.owner("gpu0") == "w0"


def test_loss_frees_accelerators_for_those_that_wait(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu1"), "w1": duty()})
    walk(book, "w0", Stage.QUIESCE, Stage.RELEASE)
    ended, acquire = book.worker_lost(3.0, "w1")
    assert isinstance(ended, HandoffEnded)
    assert isinstance(acquire, HandoffOrder)
    assert (ended.outcome, acquire.worker_id) == (Outcome.LOST, "w0")


def test_judge_has_no_versions(book: HandoffBook) -> None:
    book.published("main", 4)
    book.begin(0.0, {"w0": duty("gpu0", role=Role.GENRM)})
    (load,) = walk(book, "w0", Stage.QUIESCE, Stage.RELEASE, Stage.ACQUIRE)
    assert isinstance(load, HandoffOrder)
    assert load.version == 0
    assert stage_of(walk(book, "w0", Stage.LOAD)) is Stage.WARM


def test_failed_stage_is_a_deadline_that_came_sooner(book: HandoffBook) -> None:
    book.begin(0.0, {"w0": duty("gpu0", role=Role.GENRM), "w1": duty("gpu1", role=Role.GENRM)})
    assert book.failed(1.0, "w0", 0, Stage.QUIESCE) == []
    assert book.failed(1.0, "w0", 1, Stage.LOAD) == []
    assert outcome_of(book.failed(1.0, "w0", 1, Stage.QUIESCE)) is Outcome.ROLLED_BACK
    walk(book, "w1", Stage.QUIESCE, Stage.RELEASE, Stage.ACQUIRE)
    assert stage_of(book.failed(2.0, "w1", 1, Stage.LOAD)) is Stage.RESTART


def test_evicted_worker_keeps_its_accelerators_and_begins_nothing(book: HandoffBook) -> None:
    book.evict("w0")
    assert "not serving" in (book.refusal({"w0": duty("gpu0", role=Role.GENRM)}) or "")
    assert "owned by w0" in (book.refusal({"w1": duty("gpu0")}) or "")
    book.join("w0", 1, duty("gpu0"))
    assert book.is_serving("w0")
