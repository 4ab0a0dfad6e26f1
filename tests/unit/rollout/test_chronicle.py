"""An attempt goes on where its journal ends, and only when everything comes about as it was."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_doubles import Bench, attempt_at
from sample_trajectories import comparable

from agentrl import Env, SandboxSpec, Task, ToolCall, ToolError, Turn, reward, tool
from agentrl.record.journal import JournaledAttempt, journal_parts, read_journal
from agentrl.record.journal_writer import JournalWriter
from agentrl.rollout.local import ScriptedEngine
from agentrl.types import Outcome, StopReason, Trajectory

TASK = Task("t", "abc")


class Notes(Env):
    """State in `self`, in the box, and in the seeds; replies and tools."""

    max_turns = 6
    replayable = True
    sandbox_spec = SandboxSpec(files={"abc": "42"})
    odd: bool = False
    raises: bool = False

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        yield TASK

    async def start(self) -> str:
        self.seen: list[str] = []
        return self.task.prompt

    @tool
    async def note(self, text: str) -> str:
        if self.raises:
            raise RuntimeError("not this time")
        if text == "bad":
            raise ToolError("no such note")
        self.seen.append(text)
        self.give(0.25, "noted")
        return (
            f"{len(self.seen)} {'odd' if self.odd else (await self.sandbox.exec('cat abc')).text}"
        )

    async def reply(self, turn: Turn) -> str | None:
        self.seen.append(turn.text)
        return None if turn.text == "end" else f"heard {self.rng.randint(0, 99)}"

    @reward
    async def number(self) -> float:
        return float(len(self.seen)) + self.rng.random()


def note(text: str) -> Turn:
    return Turn("", (ToolCall("note", {"text": text}),))


TURNS = [
    note("one"),
    Turn("so"),
    Turn("", (ToolCall("note", {"text": "bad"}), ToolCall("note", {"text": "two"}))),
    Turn("end"),
]


WRITERS: list[JournalWriter] = []


@pytest.fixture(autouse=True)
def close_writers() -> Iterator[None]:
    yield
    while WRITERS:
        WRITERS.pop().close()


class Play:
    """A bench with a journal, and what its engine was asked for."""

    def __init__(
        self, folder: Path, turns: list[Turn], number: int = 0, env: type[Env] = Notes, **more: Any
    ) -> None:
        folder.mkdir()
        self.folder = folder / "journal"
        self.bench = Bench(env, turns, **more)
        self.journal = JournalWriter(self.folder, number=number, name="runner-0")
        self.bench.runner._journal = self.journal
        WRITERS.append(self.journal)
        if isinstance(self.bench.engine, ScriptedEngine):
            self.bench.engine.follow("g-0~1", iter(turns))
            self.bench.engine.follow("g-0~2", iter(turns))

    async def run(self, past: JournaledAttempt | None = None) -> Trajectory:
        return await self.bench.runner.run(attempt_at(TASK), past)

    def read(self) -> JournaledAttempt:
        self.journal.flush()
        (attempt,) = read_journal(journal_parts(self.folder)).values()
        return attempt


def known(whole: JournaledAttempt, num_turns: int, *, is_answered: bool) -> JournaledAttempt:
    """The beginning of an attempt that ended."""
    turns = list(whole.turns[:num_turns])
    if not is_answered:
        turns[-1] = replace(turns[-1], answer=None)
    return replace(whole, turns=tuple(turns), ended=None)


def told(trajectory: Trajectory) -> dict[str, Any]:
    """All of a trajectory that does not depend on when and where it was played."""
    parts: dict[str, Any] = dict(comparable(trajectory))
    for name in ("started_s", "seconds", "tool_seconds", "placements", "continued"):
        del parts[name]
    for turn in parts["turns"]:
        for result in turn["results"]:
            del result["seconds"]
    return parts


@pytest.mark.parametrize("is_answered", [True, False])
@pytest.mark.parametrize("num_turns", [1, 2, 3, 4])
async def test_any_beginning_leads_to_the_same_end(
    tmp_path: Path, num_turns: int, is_answered: bool
) -> None:
    first = Play(tmp_path / "first", TURNS)
    whole = await first.run()
    assert (whole.outcome, whole.continued) == (Outcome.FINISHED, 0)
    past = known(first.read(), num_turns, is_answered=is_answered and num_turns < 4)
    second = Play(tmp_path / "second", TURNS[num_turns:])
    trajectory = await second.run(past)
    assert told(trajectory) == told(whole)
    assert (trajectory.continued, trajectory.diverged) == (1, None)
    sampled = [entry for entry in second.bench.dispatcher.heard if entry[0] == "turn_finished"]
    assert [entry[1] for entry in sampled] == list(range(num_turns, 4))
    submitted = second.bench.dispatcher.heard[0]
    assert submitted[2:] == tuple(len(turn.ids) for turn in past.turns)
    again = second.read()
    assert again.turns == first.read().turns or [t.ids for t in again.turns] == [
        t.ids for t in first.read().turns
    ]
    assert again.continued == 1
    assert [box.closed for box in second.bench.sandboxes.boxes] == [True]


said = st.sampled_from([note("one"), note("bad"), note("two"), Turn("so"), Turn(""), Turn("end")])


@settings(max_examples=40, deadline=None)
@given(turns=st.lists(said, min_size=1, max_size=7), cut=st.floats(0, 1))
def test_a_journal_cut_at_any_byte_leads_to_the_same_end(turns: list[Turn], cut: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(cut_and_go_on(Path(folder), turns, cut))


async def cut_and_go_on(folder: Path, turns: list[Turn], cut: float) -> None:
    first = Play(folder / "first", turns)
    whole = await first.run()
    first.journal.close()
    (part,) = journal_parts(first.folder)
    written = part.read_bytes()
    part.write_bytes(written[: int(cut * written.rindex(b'{"kind":"end"'))])
    left = read_journal([part]).get("g-0")
    num_known = 0 if left is None else len(left.turns)
    second = Play(folder / "second", turns[num_known:])
    trajectory = await second.run(left)
    second.journal.close()
    assert told(trajectory) == told(whole)
    assert trajectory.diverged is None
    sampled = [heard[1] for heard in second.bench.dispatcher.heard if heard[0] == "turn_finished"]
    assert sampled == list(range(num_known, len(whole.turns)))


@pytest.mark.parametrize("option", ["odd", "raises"])
async def test_what_is_answered_otherwise_starts_anew(tmp_path: Path, option: str) -> None:
    first = Play(tmp_path / "first", TURNS)
    await first.run()
    other = Notes.configure({option: True})
    second = Play(tmp_path / "second", [], env=other)
    assert isinstance(second.bench.engine, ScriptedEngine)
    second.bench.engine.follow("g-0", iter([Turn("so"), Turn("end")]))
    trajectory = await second.run(known(first.read(), 3, is_answered=False))
    assert trajectory.outcome is Outcome.FINISHED
    assert [turn.text for turn in trajectory.turns] == ["so", "end"]
    assert trajectory.continued == 0
    wanted = {"odd": "'ok: 1 odd', where it had been 'ok: 1 42'", "raises": "not this time"}
    assert trajectory.diverged is not None
    assert wanted[option] in trajectory.diverged
    assert [box.closed for box in second.bench.sandboxes.boxes] == [True, True]
    assert ("finished", Outcome.CANCELLED) in [
        entry[:2] for entry in second.bench.dispatcher.heard if entry[0] == "finished"
    ]
    assert len(second.read().turns) == 2, "the newest opening counts"


async def test_another_opening_starts_anew(tmp_path: Path) -> None:
    first = Play(tmp_path / "first", TURNS)
    await first.run()
    past = replace(known(first.read(), 2, is_answered=True), prompt_ids=[1, 2])
    trajectory = await Play(tmp_path / "second", TURNS).run(past)
    assert trajectory.diverged == "the opening is another one"
    assert trajectory.outcome is Outcome.FINISHED


async def test_a_turn_that_was_cut_is_not_sampled_again(tmp_path: Path) -> None:
    limits = {"max_turn_tokens": 3}
    first = Play(tmp_path / "first", [Turn("far too long")], limits=limits)
    whole = await first.run()
    assert whole.stop_reason is StopReason.MAX_TOKENS
    second = Play(tmp_path / "second", [], limits=limits)
    trajectory = await second.run(known(first.read(), 1, is_answered=True))
    assert told(trajectory) == told(whole)
    assert not [entry for entry in second.bench.dispatcher.heard if entry[0] == "turn_finished"]
