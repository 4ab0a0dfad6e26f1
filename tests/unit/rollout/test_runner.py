"""One rollout from its box to its trajectory: what is recorded, and what every failure becomes."""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from rollout_doubles import TOKENIZER, Bench, MemorySource, attempt_at
from structlog.testing import capture_logs

from agentrl import (
    Env,
    Message,
    SandboxSpec,
    Task,
    ToolCall,
    ToolError,
    ToolResult,
    Turn,
    reward,
    tool,
)
from agentrl.chat.plain import PlainFormat
from agentrl.engine.engine import Sampling
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.dispatch import Placed, TurnRequest
from agentrl.rollout.local import LocalDispatcher, ScriptedEngine
from agentrl.rollout.runner import RolloutRunner
from agentrl.types import Origin, Outcome, StopReason
from sandboxes.sandbox import SandboxError, UnsafePath

TASK = Task("t", "abc")


class Files(Env):
    """Read `abc`, answer what it holds."""

    system = "read"
    max_turns = 3
    sandbox_spec = SandboxSpec(files={"abc": "42"})

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        yield TASK

    @tool
    async def sh(self, cmd: str) -> str:
        self.give(0.25, "called")
        return (await self.sandbox.exec(cmd)).text

    @tool
    def done(self) -> str:
        self.finish("submitted")
        return "bye"

    @reward(weight=0.5)
    async def exact(self) -> float | None:
        return float(self.turns[-1].text == "42")


CAT = Turn("", (ToolCall("sh", {"cmd": "cat abc"}),))


async def test_a_rollout_is_recorded_whole() -> None:
    ticks = iter(range(1000))
    bench = Bench(Files, [CAT, Turn("42")], clock=lambda: float(next(ticks)))
    trajectory = await bench.runner.run(attempt_at(TASK, sibling=3))
    assert (trajectory.outcome, trajectory.stop_reason) == (Outcome.FINISHED, StopReason.DONE)
    assert trajectory.error is None
    assert trajectory.reward == 0.75
    assert [(p.name, p.value, p.weight) for p in trajectory.reward_parts] == [
        ("exact", 1.0, 0.5),
        ("called", 0.25, 1.0),
    ]
    assert trajectory.messages == (Message("system", "read"), Message("user", "abc"))
    first, second = trajectory.turns
    assert first.calls == (ToolCall("sh", {"cmd": "cat abc"}, "0"),)
    assert first.results == (
        ToolResult(call_id="0", name="sh", text="42", seconds=first.results[0].seconds),
    )
    assert (first.reward, second.reward, second.text) == (0.25, 0.0, "42")
    assert (trajectory.sibling, trajectory.task_id, trajectory.group_id) == (3, "t", "g")
    assert [p.turn for p in trajectory.placements] == [0, 1]
    assert trajectory.seconds > trajectory.tool_seconds > 0


async def test_a_task_that_is_attempted_again_is_sampled_by_other_random_numbers() -> None:
    seeds = {}
    for name, epoch in (("first", 0), ("again", 1), ("once more", 1)):
        trajectory = await Bench(Files, [Turn("42")]).runner.run(attempt_at(TASK, epoch=epoch))
        seeds[name] = trajectory.seed
    assert seeds["first"] != seeds["again"] == seeds["once more"]


async def test_the_row_is_what_was_sampled_and_what_was_read() -> None:
    bench = Bench(Files, [CAT, Turn("42")])
    trajectory = await bench.runner.run(attempt_at(TASK))
    (row,) = trajectory.rows
    assert [s.origin for s in row] == [Origin.PROMPT, Origin.SAMPLED, Origin.TOOL, Origin.SAMPLED]
    text = TOKENIZER.decode(np.concatenate([s.ids for s in row]).tolist(), False)
    assert text == (
        "<system>read<end><user>abc<end><assistant>"
        "<call>sh cat abc<end><tool>42<end><assistant>42<end>"
    )
    assert row[1].ids.tolist() == bench.chat.render_assistant(CAT)
    assert row[3].ids.tolist()[-1:] == list(bench.chat.stop_ids)


async def test_the_dispatcher_hears_of_everything_in_order() -> None:
    bench = Bench(Files, [CAT, Turn("42")])
    trajectory = await bench.runner.run(attempt_at(TASK))
    prompt, sampled, read, last = (len(s) for s in trajectory.rows[0])
    assert bench.dispatcher.heard == [
        ("submitted", prompt),
        ("progress", 0, sampled),
        ("turn_finished", 0, sampled, prompt + sampled),
        ("tool_started", 0, "0"),
        ("tool_returned", 0, "0", "ok"),
        ("progress", 1, last),
        ("turn_finished", 1, last, prompt + sampled + read + last),
        ("finished", Outcome.FINISHED, sampled + last),
    ]


async def test_what_is_being_scored_counts_as_ended() -> None:
    """Where all workers turn to judging when no attempt is open, it would wait for ever else."""
    heard_before: list[str] = []

    class Judged(Files):
        @reward
        def late(self) -> float:
            heard_before.extend(heard[0] for heard in bench.dispatcher.heard)
            return 1.0

    bench = Bench(Judged, [Turn("42")])
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert trajectory.outcome is Outcome.FINISHED
    assert heard_before[-1] == "finished"
    assert [heard[0] for heard in bench.dispatcher.heard].count("finished") == 1


async def test_finish_ends_a_rollout_and_counts_its_reason() -> None:
    bench = Bench(Files, [Turn("", (ToolCall("done"),)), CAT])
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.DONE, 1)
    assert trajectory.metrics == {"finish/submitted": 1.0}


async def test_max_turns_is_the_environments_unless_the_run_says_otherwise() -> None:
    for limits, played in (({}, 3), ({"max_turns": 2}, 2)):
        bench = Bench(Files, [CAT] * 5, limits=limits)
        trajectory = await bench.runner.run(attempt_at(TASK))
        assert (trajectory.stop_reason, trajectory.outcome, len(trajectory.turns)) == (
            StopReason.MAX_TURNS,
            Outcome.TRUNCATED,
            played,
        )
        assert trajectory.reward == 0.25 * played


class Chatty(Files):
    """Plain methods, a reply to turns without calls, and a limit of its own."""

    system = None
    sandbox_spec = None

    def start(self) -> list[Message]:  # type: ignore[override]  # plain methods are allowed
        self.max_turns = 4
        return [Message("user", "one"), Message("assistant", "two"), Message("user", "three")]

    def reply(self, turn: Turn) -> str | None:  # type: ignore[override]  # plain methods are allowed
        return None if turn.text == "42" else f"not {turn.text}"


async def test_replies_go_on_until_there_is_none() -> None:
    bench = Bench(Chatty, [Turn("41"), Turn("42")])
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert [turn.reply for turn in trajectory.turns] == ["not 41", None]
    assert [message.content for message in trajectory.messages] == ["one", "two", "three"]
    assert [s.origin for s in trajectory.rows[0]][2] is Origin.REPLY
    assert trajectory.reward == 0.5


@pytest.mark.parametrize(
    ("value", "part"),
    [(None, "exact returned None"), (math.nan, "exact is nan"), (-math.inf, "exact is -inf")],
)
async def test_a_reward_that_is_no_number_is_no_zero(value: float | None, part: str) -> None:
    class Unsure(Files):
        @reward
        def exact(self) -> float | None:  # type: ignore[override]  # plain methods are allowed
            return value

    trajectory = await Bench(Unsure, [CAT, Turn("42")]).runner.run(attempt_at(TASK))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.UNSCORED, None)
    assert trajectory.error == f"unscored: {part}"
    assert trajectory.reward_parts[0].value is None


async def test_a_nan_that_was_given_is_named_too() -> None:
    class Gives(Files):
        async def close(self) -> None: ...
        async def reply(self, turn: Turn) -> None:
            self.give(math.nan, "style")

    trajectory = await Bench(Gives, [Turn("42")]).runner.run(attempt_at(TASK))
    assert (trajectory.outcome, trajectory.error) == (Outcome.UNSCORED, "unscored: style is nan")


def breaking() -> Callable[..., Any]:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("my own mistake")

    return broken


def breaking_tool() -> Callable[..., Any]:
    async def sh(self: Any, cmd: str) -> str:
        raise KeyError("my own mistake")

    return tool(sh)


@pytest.mark.parametrize("place", ["start", "reply", "exact", "sh", "sandbox_for"])
async def test_what_an_environment_raises_is_its_own_error(place: str) -> None:
    made: dict[str, Any] = {
        "sh": breaking_tool(),
        "exact": reward(breaking()),
        "sandbox_for": classmethod(breaking()),
    }
    bad = type("Bad", (Files,), {place: made.get(place, breaking())})
    sandboxes = MemorySource()
    trajectory = await Bench(bad, [CAT, Turn("42")], sandboxes=sandboxes).runner.run(
        attempt_at(TASK)
    )
    assert (trajectory.outcome, trajectory.stop_reason, trajectory.reward) == (
        Outcome.ENV_ERROR,
        StopReason.ENV_ERROR,
        None,
    )
    assert "KeyError: 'my own mistake'" in (trajectory.error or "")
    assert all(box.closed for box in sandboxes.boxes)
    for turn in trajectory.turns:
        assert [r.call_id for r in turn.results] == [c.id for c in turn.calls]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, "start() returned None; wanted a text or a list of Message"),
        ({"max_turns": "2"}, "max_turns is '2'; wanted an integer of at least 1"),
        ({"system": 5}, "system is 5; wanted a text or None"),
    ],
)
async def test_an_unfit_start_is_the_environments_error(said: Any, told: str) -> None:
    class Opens(Files):
        def start(self) -> Any:
            vars(self).update(said or {})
            return said and "go"

    trajectory = await Bench(Opens, [Turn("42")]).runner.run(attempt_at(TASK))
    assert trajectory.outcome is Outcome.ENV_ERROR
    assert told in (trajectory.error or "")


@pytest.mark.parametrize(
    "refusal",
    [
        OSError(errno.ENOSPC, "No space left on device", "abc"),
        UnsafePath("'../abc' holds '..' or a NUL"),
        ValueError("an upload of 1 files and 1073741824 bytes"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ],
)
async def test_a_box_that_cannot_be_as_the_environment_wants_it_is_its_own_error(
    refusal: Exception,
) -> None:
    bench = Bench(Files, [CAT], sandboxes=MemorySource(refusal=refusal))
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.ENV_ERROR, None)
    assert "Files.sandbox_for" in (trajectory.error or "")
    assert str(refusal) in (trajectory.error or "")


async def test_no_box_in_time_is_not_the_environments_error() -> None:
    refusal = SandboxError("1 boxes could not be had within 300 s")
    bench = Bench(Files, [CAT], sandboxes=MemorySource(refusal=refusal))
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert trajectory.outcome is Outcome.INFRA_ERROR


async def test_a_lost_box_is_never_scored() -> None:
    bench = Bench(Files, [CAT, Turn("42")], sandboxes=MemorySource(lost=True))
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert (trajectory.outcome, trajectory.stop_reason, trajectory.reward) == (
        Outcome.INFRA_ERROR,
        StopReason.INFRA_ERROR,
        None,
    )
    assert "the box is gone" in (trajectory.error or "")
    assert bench.dispatcher.heard[-1][:2] == ("finished", Outcome.INFRA_ERROR)


async def test_an_environment_that_cannot_close_keeps_its_score() -> None:
    bad = type("BadClose", (Files,), {"close": breaking()})
    with capture_logs() as logs:
        trajectory = await Bench(bad, [CAT, Turn("42")]).runner.run(attempt_at(TASK))
    assert trajectory.reward == 0.75
    assert [log["event"] for log in logs] == ["an environment did not close"]


class Hangs(Files):
    @tool
    async def sh(self, cmd: str) -> str:
        await asyncio.Event().wait()
        raise AssertionError


async def test_the_wall_clock_ends_and_scores_an_attempt() -> None:
    bench = Bench(Hangs, [CAT], limits={"trajectory_timeout_s": 0.05})
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert (trajectory.stop_reason, trajectory.outcome, trajectory.reward) == (
        StopReason.WALL_CLOCK,
        Outcome.TRUNCATED,
        0.0,
    )
    (turn,) = trajectory.turns
    assert [result.status for result in turn.results] == ["error"]
    assert bench.sandboxes.boxes[0].closed


@pytest.mark.parametrize("place", ["start", "exact"])
async def test_time_that_the_environment_takes_is_not_the_policys(place: str) -> None:
    async def hang(self: Any) -> Any:
        await asyncio.Event().wait()

    slow = type("Slow", (Files,), {place: reward(hang) if place == "exact" else hang})
    bench = Bench(slow, [CAT], limits={"trajectory_timeout_s": 0.05})
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.ENV_ERROR, None)
    assert "after 0.05 s" in (trajectory.error or "")


async def test_time_spent_waiting_for_a_place_is_not_the_attempts() -> None:
    class Busy(LocalDispatcher):
        async def turn_ready(self, request: TurnRequest) -> Placed:
            await asyncio.sleep(2.5)
            return await super().turn_ready(request)

    bench = Bench(Files)
    runner = RolloutRunner(
        env_class=Files,
        chat=bench.chat,
        limits=RolloutLimits(trajectory_timeout_s=2),
        sampling=Sampling(),
        dispatcher=Busy(ScriptedEngine(bench.chat)),
        sandboxes=bench.sandboxes,
    )
    trajectory = await runner.run(attempt_at(TASK))
    assert trajectory.outcome is Outcome.FINISHED


async def test_cancellation_cleans_up_and_is_passed_on() -> None:
    started = asyncio.Event()

    class Starts(Hangs):
        @tool
        async def sh(self, cmd: str) -> str:
            started.set()
            return await super().sh(cmd)

    bench = Bench(Starts, [CAT])
    task = asyncio.create_task(bench.runner.run(attempt_at(TASK)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.sandboxes.boxes[0].closed
    assert bench.dispatcher.heard[-1][:2] == ("finished", Outcome.CANCELLED)


async def test_an_environment_needs_no_box() -> None:
    bench = Bench(Chatty, [CAT])
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert trajectory.outcome is Outcome.ENV_ERROR
    assert "set `sandbox_spec`" in (trajectory.error or "")
    assert bench.sandboxes.boxes == []


FAR_TOO_MUCH = "x" * 5_000_000


class Flood(Env):
    """Answers with more text than any context holds, at `place`."""

    max_turns = 3
    place: str = ""

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        yield TASK

    def _say(self, place: str) -> str:
        return FAR_TOO_MUCH if self.place == place else "short"

    async def start(self) -> str:
        return self._say("start")

    async def reply(self, turn: Turn) -> str | None:
        return self._say("reply")

    @tool
    async def read(self) -> str:
        return self._say("tool")

    @tool
    async def refuse(self) -> str:
        raise ToolError(self._say("error"))

    @reward
    async def one(self) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("place", "turn"),
    [
        ("start", Turn("hm")),
        ("reply", Turn("hm")),
        ("tool", Turn("", (ToolCall("read"), ToolCall("read")))),
        ("error", Turn("", (ToolCall("refuse"),))),
    ],
)
async def test_text_that_no_context_holds_is_cut_and_never_tokenized(
    place: str, turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = PlainFormat._encode

    def counting(chat: PlainFormat, text: str) -> list[int]:
        encoded.append(len(text))
        return encode(chat, text)

    monkeypatch.setattr(PlainFormat, "_encode", counting)
    bench = Bench(Flood.configure({"place": place}), [turn], limits={"context_tokens": 512})
    played = await bench.runner.run(attempt_at(TASK))
    assert (played.stop_reason, played.outcome, played.reward) == (
        StopReason.CONTEXT_FULL, Outcome.TRUNCATED, 1.0,
    )  # fmt: skip
    assert max(encoded) < 1000
    texts = [message.content for message in played.messages]
    texts += [
        text for t in played.turns for text in (t.reply, *(r.text for r in t.results)) if text
    ]
    long = [text for text in texts if len(text) > 100]
    assert long
    for text in long:
        assert len(text) < 1000
        assert text.endswith("[cut here: 5000000 characters, more than 512 tokens can hold]")


async def test_a_last_answer_is_kept_whatever_the_context_holds() -> None:
    """No turn follows it, so there is nothing to tokenize and nothing that it would not fit."""
    bench = Bench(
        Flood.configure({"place": "tool"}),
        [Turn("", (ToolCall("read"),))],
        limits={"max_turns": 1},
    )
    played = await bench.runner.run(attempt_at(TASK))
    assert played.stop_reason is StopReason.MAX_TURNS
