"""Warm-up rows are what a rollout of the same turns would have recorded, with and without tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from rollout_doubles import TOKENIZER, Bench, MemorySource, attempt_at

from agentrl import Env, SandboxSpec, Task, ToolCall, ToolResult, Turn, reward, tool
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.check import check_env
from agentrl.rollout.demos import DemoRow, demo_rows, demo_tasks
from agentrl.types import Origin


class Shelf(Env):
    """Two tasks; the demonstration draws a greeting, asks one thing and answers it."""

    max_turns = 3
    sandbox_spec = SandboxSpec()
    tells: str = "42"
    """What the demonstration says that the tool returns."""
    promises: bool = True

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        for n in range(2):
            yield Task(f"{split}-{n}", prompt=f"{n}", data={"answer": "42"})

    @classmethod
    def sandbox_for(cls, task: Task) -> SandboxSpec:
        return replace(SandboxSpec(), files={"abc": task.data["answer"]})

    @tool
    async def sh(self, cmd: str) -> str:
        return (await self.sandbox.exec(cmd)).text

    async def reply(self, turn: Turn) -> str | None:
        return None if turn.text == "42" else "well?"

    @reward
    async def exact(self) -> float:
        return float(self.turns[-1].text == "42")

    def demo(self) -> Iterator[Turn]:
        yield Turn(f"hi {self.rng.randint(0, 10**6)}")
        results = (ToolResult(call_id="0", name="sh", text=self.tells),) if self.promises else ()
        yield Turn("", (ToolCall("sh", {"cmd": "cat abc"}),), results=results)
        yield Turn(self.turns[-1].results[0].text)


async def rows_of(env_class: type[Env], count: int = 3, **options: Any) -> list[DemoRow]:
    tasks = list(islice(demo_tasks(env_class), count))
    return await demo_rows(env_class, Bench(env_class).chat, RolloutLimits(), tasks, **options)


def text_of(row: DemoRow) -> str:
    text: str = TOKENIZER.decode(row.ids.tolist(), False)
    return text


async def test_rows_are_the_same_whether_tools_run_or_not() -> None:
    source = MemorySource()
    written = await rows_of(Shelf)
    played = await rows_of(Shelf.configure({"promises": False}), sandboxes=source)
    assert len(source.boxes) == 3
    for one, other in zip(written, played, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.loss_mask.tolist() == other.loss_mask.tolist()


async def test_a_row_is_what_a_rollout_records() -> None:
    (row,) = await rows_of(Shelf, count=1)
    task = next(iter(Shelf.tasks("train")))
    env = Shelf(task)
    env.turns = [Turn(), Turn(results=(ToolResult(call_id="0", name="sh", text="42"),))]
    bench = Bench(Shelf, list(env.demo()))
    trajectory = await bench.runner.run(attempt_at(task))
    segments = trajectory.rows[0]
    assert row.ids.tolist() == np.concatenate([s.ids for s in segments]).tolist()
    assert row.loss_mask.tolist() == [s.origin is Origin.SAMPLED for s in segments for _ in s.ids]


async def test_tasks_are_repeated_with_another_draw() -> None:
    rows = await rows_of(Shelf, count=4)
    assert text_of(rows[0]).startswith("<user>0<end>")
    assert text_of(rows[2]).startswith("<user>0<end>")
    assert text_of(rows[0]) != text_of(rows[2])


async def test_a_start_that_needs_its_box_gets_one() -> None:
    class Reads(Shelf):
        async def start(self) -> str:
            return await self.sandbox.read_text("abc")

    rows = await rows_of(Reads, count=1, sandboxes=MemorySource())
    assert text_of(rows[0]).startswith("<user>42<end>")


@pytest.mark.parametrize("promises", [True, False])
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_turn_tokens": 8}, "max_tokens"),
        ({"context_tokens": 20}, "context_full"),
        ({"max_turns": 2}, "max_turns"),
    ],
)
async def test_a_demonstration_that_does_not_fit_is_refused(
    promises: bool, limits: dict[str, int], reason: str
) -> None:
    env_class = Shelf.configure({"promises": promises})
    with pytest.raises(ValueError, match=rf"does not fit the run's limits \({reason}\)"):
        await demo_rows(
            env_class,
            Bench(env_class).chat,
            RolloutLimits(**limits),
            list(islice(demo_tasks(env_class), 1)),
            sandboxes=MemorySource(),
        )


async def test_no_demonstration_is_an_error_of_the_user() -> None:
    class Silent(Env):
        @classmethod
        def tasks(cls, split: str) -> Iterable[Task]:
            yield Task("t")

    with pytest.raises(ValueError, match="Silent has no demo"):
        await rows_of(Silent)


# ------------------------------------------------------------------------------------------ check


def problems_of(env_class: type[Env]) -> str:
    report = asyncio.run(
        check_env(env_class, Bench(env_class).chat, RolloutLimits(), sandboxes=MemorySource())
    )
    assert report.ok == (not report.problems)
    return "\n".join(report.problems)


def test_a_good_environment_passes() -> None:
    report = asyncio.run(
        check_env(Shelf, Bench(Shelf).chat, RolloutLimits(), sandboxes=MemorySource())
    )
    assert report.problems == ()
    assert (report.num_tasks, report.demo_reward, report.empty_reward) == (4, 1.0, 0.0)
    assert [schema.name for schema in report.tools] == ["sh"]


class Leaks(Shelf):
    @reward
    async def exact(self) -> float:
        return 1.0


class Impatient(Shelf):
    def demo(self) -> Iterator[Turn]:
        yield Turn("41")


class Restless(Shelf):
    started = 0

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        cls.started += 1
        yield Task(f"{split}-{cls.started}", data={"answer": "42"})


class SameIds(Shelf):
    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        yield Task("one", data={"answer": "42"})


class Moody(Shelf):
    async def start(self) -> str:
        return str(self.rng.random())


class Broken(Shelf):
    @reward
    async def exact(self) -> float | None:  # type: ignore[override]  # the mistake under test
        return None


class Undemonstrated(Env):
    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        yield Task(split)


@pytest.mark.parametrize(
    ("env_class", "problem"),
    [
        (Undemonstrated, "there is no demo()"),
        (Leaks, "a policy that says nothing earns 1"),
        (Impatient, "demo() earns 0, wanted 1"),
        (Restless, "yields other tasks the second time"),
        (SameIds, "tasks in both train and eval: one"),
        (Moody, "start() differs between members of a group"),
        (Broken, "demo() ends in unscored: unscored: exact returned None"),
        (
            Shelf.configure({"tells": "43"}),
            "turn 1 of demo() promises the results ['43'], the tools give ['42']",
        ),
    ],
)
def test_what_is_wrong_with_an_environment_is_found(env_class: type[Env], problem: str) -> None:
    assert problem in problems_of(env_class)
