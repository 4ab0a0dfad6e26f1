"""What the journal gives back: everything that was written, and never more than was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sample_trajectories import comparable, make_trajectory

from agentrl.record import journal_writer
from agentrl.record.journal import (
    Answer,
    JournaledAttempt,
    SampledTurn,
    journal_parts,
    read_journal,
)
from agentrl.record.journal_writer import JournalWriter
from agentrl.types import Entry, Message, StopReason, ToolCall, ToolResult, Turn

SPENT = {"seconds": 1.5, "tool_seconds": 0.5}


def opening(name: str = "g000000-0") -> JournaledAttempt:
    return JournaledAttempt(
        trajectory_id=name,
        task_id="task",
        group_id=name.partition("-")[0],
        sibling=0,
        attempt=0,
        split="train",
        prompt_ids=[1, 2, 3],
        messages=(Message("user", "go"),),
        started_s=12.5,
    )


def turn(number: int, *, version: int = 0, cut: StopReason | None = None) -> SampledTurn:
    return SampledTurn(
        ids=[number, 7],
        logprobs=[float(np.float32(-0.1)), -2.0],
        policy_versions=[version, version + 1],
        said=Turn(f"say {number}", (ToolCall("sh", {"cmd": "ls"}, "0"),), "hm"),
        cut=cut,
    )


def answer(number: int) -> Answer:
    result = ToolResult(call_id="0", name="sh", text=f"out {number}", seconds=0.25)
    return Answer(results=(result,), ids=[9, number])


WRITERS: list[JournalWriter] = []


@pytest.fixture(autouse=True)
def close_writers() -> Iterator[None]:
    yield
    while WRITERS:
        WRITERS.pop().close()


def writer(folder: Path, number: int = 0) -> JournalWriter:
    WRITERS.append(JournalWriter(folder / "journal", number=number, name="runner-0"))
    return WRITERS[-1]


def read(folder: Path) -> dict[str, JournaledAttempt]:
    return read_journal(journal_parts(folder / "journal"))


def play(journal: JournalWriter, attempt: JournaledAttempt, num_turns: int) -> JournaledAttempt:
    """All but the last turn are answered."""
    journal.opened(attempt)
    name, turns = attempt.trajectory_id, []
    for number in range(num_turns):
        turns.append(turn(number))
        journal.turn(name, number, turns[-1], **SPENT)
        if number < num_turns - 1:
            turns[-1] = replace(turns[-1], answer=answer(number))
            journal.answer(name, number, answer(number), **SPENT)
    return replace(attempt, turns=tuple(turns), **SPENT)


def test_an_open_attempt_comes_back_as_it_was(tmp_path: Path) -> None:
    played = play(writer(tmp_path), opening(), 3)
    assert read(tmp_path) == {"g000000-0": played}
    assert played.newest_version == 1


def test_a_turn_is_there_before_the_call_returns_and_a_torn_line_is_not(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    play(journal, opening(), 2)
    (part,) = journal_parts(tmp_path / "journal")
    whole = part.read_bytes()
    assert len(read(tmp_path)["g000000-0"].turns) == 2
    part.write_bytes(whole[:-1])
    (attempt,) = read(tmp_path).values()
    assert [t.answer for t in attempt.turns] == [answer(0)]
    part.write_bytes(whole[: whole.rindex(b'{"kind":"turn"')] + b"\x00\x00\n" + whole)
    assert len(read(tmp_path)["g000000-0"].turns) == 1, "nothing behind what cannot be read"


def test_a_missing_turn_ends_what_is_known(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    play(journal, opening(), 4)
    (part,) = journal_parts(tmp_path / "journal")
    lines = part.read_bytes().splitlines(keepends=True)
    for missing in range(1, len(lines)):
        part.write_bytes(b"".join(lines[:missing] + lines[missing + 1 :]))
        (attempt,) = read(tmp_path).values()
        known = (missing + 1) // 2 if missing % 2 == 0 else missing // 2
        assert len(attempt.turns) == known
        assert [t.ids for t in attempt.turns] == [turn(n).ids for n in range(known)]


def test_an_end_holds_the_whole_trajectory(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    entry = Entry(name="best", weight=0.5, question="which?", text="mine")
    trajectory = make_trajectory(entries=(entry,), continued=2, diverged="turn 0: other")
    play(journal, opening(), 2)
    journal.end(trajectory)
    (attempt,) = read(tmp_path).values()
    assert attempt.ended is not None
    assert comparable(attempt.ended) == comparable(trajectory)
    assert attempt.newest_version == trajectory.newest_policy_version


def test_the_newest_opening_counts_whatever_the_names_of_its_parts(tmp_path: Path) -> None:
    play(writer(tmp_path, number=9), opening(), 3)
    again = play(writer(tmp_path, number=10), replace(opening(), continued=1), 1)
    assert read(tmp_path) == {"g000000-0": again}


def test_going_on_takes_the_past_along(tmp_path: Path) -> None:
    played = play(writer(tmp_path), opening(), 3)
    journal = writer(tmp_path, number=1)
    journal.opened(replace(played, continued=1))
    journal_parts(tmp_path / "journal")[0].unlink()
    assert read(tmp_path) == {"g000000-0": replace(played, continued=1)}
    journal.answer("g000000-0", 2, answer(2), **SPENT)
    journal.turn("g000000-0", 3, turn(3), **SPENT)
    assert len(read(tmp_path)["g000000-0"].turns) == 4


def test_parts_go_when_nothing_in_them_is_wanted(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    play(journal, opening("g000000-0"), 1)
    journal.forget(lambda kept: False)
    play(journal, opening("g000001-0"), 1)
    journal.turn("g000000-0", 1, turn(1), **SPENT)
    assert len(journal_parts(tmp_path / "journal")) == 2
    journal.forget(lambda kept: kept.group_id == "g000000")
    assert len(journal_parts(tmp_path / "journal")) == 1
    assert set(read(tmp_path)) == {"g000001-0"}
    journal.forget(lambda kept: True)
    assert journal_parts(tmp_path / "journal") == []


def test_a_full_disk_is_counted_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullFile(journal_writer.AppendFile):
        is_full = True

        def append(self, data: bytes) -> int:
            if self.is_full:
                raise OSError(28, "No space left on device")
            return super().append(data)

    monkeypatch.setattr(journal_writer, "AppendFile", FullFile)
    journal = writer(tmp_path)
    play(journal, opening(), 1)
    assert journal.num_failed == 2
    monkeypatch.setattr(FullFile, "is_full", False)
    journal.turn("g000000-0", 1, turn(1), **SPENT)
    assert read(tmp_path) == {}, "a turn without its beginning says nothing"
    play(journal, opening("g000001-0"), 2)
    assert len(read(tmp_path)["g000001-0"].turns) == 2
    assert journal.num_failed == 2
