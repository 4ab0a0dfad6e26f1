"""What becomes of the attempts that lost processes left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_trajectories import make_trajectory

from agentrl.record.journal import (
    JournaledAttempt,
    SampledTurn,
    ended_attempt,
    journal_parts,
    read_journal,
)
from agentrl.record.journal_writer import JournalWriter
from agentrl.rollout.attempt import Attempt
from agentrl.runtime.journals import MAX_CONTINUED, Fate, Journals, Tally
from agentrl.runtime.progress import NO_CHECKPOINT, RunProgress, Standing
from agentrl.types import Outcome, Task, Trajectory, Turn

CHECKPOINT = Standing(step=5, cursor=4, pending=frozenset({2, 3}))


def left(group: int, sibling: int = 0, *, version: int = 5, **changes: Any) -> JournaledAttempt:
    turn = SampledTurn(ids=[1], logprobs=[-1.0], policy_versions=[version], said=Turn("x"))
    name = f"g{group:06d}"
    fields: dict[str, Any] = {
        "trajectory_id": f"{name}-{sibling}",
        "task_id": f"t{group}",
        "group_id": name,
        "sibling": sibling,
        "attempt": 0,
        "split": "train",
        "prompt_ids": [1],
        "messages": (),
        "started_s": 0.0,
        "turns": (turn,),
    }
    return JournaledAttempt(**(fields | changes))


def ended(group: int, sibling: int = 0, **changes: Any) -> JournaledAttempt:
    trajectory = make_trajectory(f"g{group:06d}", sibling, task_id=f"t{group}", **changes)
    return ended_attempt(trajectory)


def attempt_of(journaled: JournaledAttempt) -> Attempt:
    return Attempt(
        trajectory_id=journaled.trajectory_id,
        task=Task(journaled.task_id),
        group_id=journaled.group_id,
        sibling=journaled.sibling,
        attempt=journaled.attempt,
    )


OPEN: list[Journals] = []


@pytest.fixture(autouse=True)
def close_journals() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Desk:
    def __init__(self, folder: Path, *attempts: JournaledAttempt, is_replayable: bool = True):
        self.folder = folder / "journal"
        self.write(0, *attempts)
        self.reports: list[str] = []
        self.settled: list[tuple[Standing, Standing]] = []
        self.is_replayable = is_replayable
        self.journals = self.open()

    def open(self, checkpoint: Standing = CHECKPOINT) -> Journals:
        journals = Journals(
            self.folder,
            checkpoint=checkpoint,
            is_replayable=self.is_replayable,
            settle=lambda checkpoint, now: self.settled.append((checkpoint, now)),
            report=lambda tally: self.reports.append(str(tally)),
        )
        OPEN.append(journals)
        return journals

    def write(self, number: int, *attempts: JournaledAttempt) -> None:
        writer = JournalWriter(self.folder, number=number, name="runner-0")
        self.append(writer, *attempts)

    @staticmethod
    def append(writer: JournalWriter, *attempts: JournaledAttempt) -> None:
        for attempt in attempts:
            writer.opened(attempt)
        writer.close()

    def names(self) -> set[str]:
        return set(read_journal(journal_parts(self.folder)))


@pytest.mark.parametrize(
    ("attempt", "fate"),
    [
        (left(2), Fate.CONTINUED),
        (left(7), Fate.CONTINUED),
        (left(2, version=6), Fate.LOST_WEIGHTS),
        (left(2, turns=()), Fate.NO_TURN),
        (left(2, continued=MAX_CONTINUED), Fate.CONTINUED_OFTEN),
        (ended(3), Fate.TAKEN),
        (ended(3, outcome=Outcome.TRUNCATED), Fate.TAKEN),
        (ended(3, outcome=Outcome.ENV_ERROR), Fate.FAILED),
        (ended(3, outcome=Outcome.INFRA_ERROR), Fate.FAILED),
        (left(1), None),
        (ended(0), None),
        (left(2, split="eval"), None),
    ],
)
def test_each_attempt_has_its_fate(
    tmp_path: Path, attempt: JournaledAttempt, fate: Fate | None
) -> None:
    desk = Desk(tmp_path, attempt)
    planned = desk.journals.take_over()
    assert dict(planned.fates) == ({} if fate is None else {fate: 1})
    is_usable = fate in (Fate.CONTINUED, Fate.TAKEN)
    assert desk.names() == ({attempt.trajectory_id} if is_usable else set())
    taken = desk.journals.take(attempt_of(attempt))
    assert (taken is not None) == is_usable
    assert desk.journals.take(attempt_of(attempt)) is None, "handed out once"


def test_an_environment_that_does_not_allow_it_goes_on_with_what_has_ended(tmp_path: Path) -> None:
    desk = Desk(tmp_path, left(2), ended(3), is_replayable=False)
    assert dict(desk.journals.take_over().fates) == {Fate.NOT_REPLAYABLE: 1, Fate.TAKEN: 1}


def test_without_a_checkpoint_all_weights_are_lost(tmp_path: Path) -> None:
    desk = Desk(tmp_path, left(2, version=0), ended(3))
    assert dict(desk.open(NO_CHECKPOINT).take_over().fates) == {Fate.LOST_WEIGHTS: 2}
    assert desk.names() == set()


def test_a_retry_that_was_under_way_goes_on_as_one(tmp_path: Path) -> None:
    first = ended(2, outcome=Outcome.INFRA_ERROR, reward=None)
    second = left(2, attempt=1, trajectory_id="g000002-0.1")
    desk = Desk(tmp_path, first, second)
    assert dict(desk.journals.take_over().fates) == {Fate.TAKEN: 1, Fate.CONTINUED: 1}
    one = desk.journals.take(attempt_of(first))
    assert one is not None
    assert one.ended is not None
    assert one.ended.outcome is Outcome.INFRA_ERROR
    two = desk.journals.take(attempt_of(first).again())
    assert two is not None
    assert two.turns == second.turns


def test_another_task_in_the_same_place_starts_anew(tmp_path: Path) -> None:
    desk = Desk(tmp_path, left(2))
    desk.journals.take_over()
    assert desk.journals.take(replace(attempt_of(left(2)), task=Task("other"))) is None
    assert desk.journals.tally.restarted == {"other task": 1}


def test_lost_weights_are_forgotten_for_good(tmp_path: Path) -> None:
    """A later checkpoint has the same number for other weights."""
    desk = Desk(tmp_path, left(2, version=6), left(3))
    desk.journals.take_over()
    later = desk.open(Standing(step=7, cursor=4, pending=frozenset({2, 3})))
    assert dict(later.take_over().fates) == {Fate.CONTINUED: 1}


def test_what_became_of_them_is_reported_once_it_is_known(tmp_path: Path) -> None:
    desk = Desk(tmp_path, left(2), left(2, 1), left(3, turns=()), ended(3, 1))
    journals = desk.journals
    journals.take_over()
    for attempt in (left(2), left(2, 1), ended(3, 1)):
        journals.take(attempt_of(attempt))
    journals.stepped(RunProgress(step=6, cursor=6, pending=[2, 3]))
    assert desk.reports == []
    journals.returned(returned(left(2), continued=1))
    journals.returned(returned(left(2, 1), diverged="turn 0: no"))
    assert desk.names() == {"g000002-0", "g000002-1", "g000003-1"}
    journals.stepped(RunProgress(step=7, cursor=6, pending=[2]))
    assert desk.reports == [
        "continued 1, restarted 2 (1 answered otherwise, 1 no turn yet), taken from the record 1"
    ]
    journals.stepped(RunProgress(step=8, cursor=6, pending=[]))
    assert len(desk.reports) == 1


def returned(attempt: JournaledAttempt, **changes: Any) -> Trajectory:
    return make_trajectory(attempt.group_id, attempt.sibling, **changes)


def test_the_folder_holds_what_a_resumed_run_could_use(tmp_path: Path) -> None:
    desk = Desk(tmp_path, left(2), ended(3))
    journals = desk.journals
    journals.take_over()
    journals.stepped(RunProgress(step=6, cursor=5, pending=[2]))
    assert desk.names() == {"g000002-0", "g000003-0"}, "trained on, but in no checkpoint yet"
    journals.checkpointed(RunProgress(step=6, cursor=5, pending=[2]))
    assert "g000002-0" in desk.names()
    journals.checkpointed(RunProgress(step=7, cursor=5, pending=[]))
    assert desk.names() == set()
    assert [now.step for _, now in desk.settled] == [6, 6, 7]
    assert [checkpoint.step for checkpoint, _ in desk.settled] == [5, 6, 7]


async def test_attempts_of_a_lost_runner_go_on_or_are_tried_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    journals = desk.journals
    journals.take_over()
    writer = journals.writer_for("runner-0")
    delivered = ended(2, 3)
    desk.append(writer, left(2, version=9), ended(2, 1), left(3, turns=()), delivered)
    lost = [attempt_of(a) for a in (left(2), ended(2, 1), left(3), left(3, 1))]
    recovered = await journals.recover("runner-0", lost, "it was killed")
    assert [a.trajectory_id for a, _ in recovered.under_way] == ["g000002-0"]
    outcomes = {t.trajectory_id: t.outcome for t in recovered.ended}
    assert outcomes == {
        "g000002-1": Outcome.FINISHED,
        "g000003-0": Outcome.INFRA_ERROR,
        "g000003-1": Outcome.INFRA_ERROR,
    }
    kept = read_journal(journal_parts(desk.folder))
    assert kept.keys() == {"g000002-0", *outcomes, delivered.trajectory_id}
    assert all(
        part.name.endswith(".jsonl") and "driver" in part.name
        for part in journal_parts(desk.folder)
    )


async def test_a_runner_that_dies_over_an_attempt_again_and_again_gets_rid_of_it(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, left(2))
    journals = desk.journals
    journals.take_over()
    journals.take(attempt_of(left(2)))
    for _ in range(MAX_CONTINUED):
        journals.writer_for("runner-0")
        recovered = await journals.recover("runner-0", [attempt_of(left(2))], "killed")
        if recovered.ended:
            break
    assert [t.outcome for t in recovered.ended] == [Outcome.INFRA_ERROR]
    assert journals.tally.restarted == {"continued too often": 1}


def test_a_tally_says_why() -> None:
    tally = Tally()
    assert str(tally) == "continued 0, restarted 0, taken from the record 0"
