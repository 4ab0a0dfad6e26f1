"""The calls of one turn: beside each other or alone, answered once, in call order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from rollout_doubles import Bench, attempt_at

from agentrl import Env, Task, ToolCall, ToolError, Turn, reward, tool
from agentrl.rollout import tools
from agentrl.types import Outcome, ToolResult
from sandboxes.sandbox import SandboxLost

TASK = Task("t")


class Kit(Env):
    max_turns = 2

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        yield TASK

    async def start(self) -> str:
        self.log: list[str] = []
        self.meeting = asyncio.Barrier(2)
        return ""

    @tool
    async def meet(self, name: str) -> str:
        """Returns only when two calls are here at the same time."""
        await self.meeting.wait()
        self.log.append(name)
        return name

    @tool(serial=True)
    async def alone(self, name: str) -> str:
        self.log.append(f"{name} begins")
        await asyncio.sleep(0)
        self.log.append(f"{name} ends")
        return name

    @tool
    def stop(self) -> str:
        """A plain function; this exception cannot be set on a future."""
        raise StopIteration

    @tool
    async def refuse(self, n: int = 1) -> str:
        raise ToolError(f"no, {n} times")

    @tool
    async def hang(self) -> str:
        await asyncio.Event().wait()
        return ""

    @tool
    async def raise_(self) -> str:
        raise KeyError("mine")

    @tool
    async def own_timeout(self) -> str:
        raise TimeoutError

    @tool
    async def lose(self) -> str:
        await asyncio.sleep(0)
        raise SandboxLost("gone")

    @tool
    def data(self) -> Any:
        return {"a": [1, "é"]}

    @tool
    async def nothing(self) -> None:
        self.log.append("nothing")

    @reward
    async def log_length(self) -> float:
        return float(len(self.log))


async def play(*calls: ToolCall, **limits: Any) -> tuple[tuple[ToolResult, ...], Any]:
    """Results of one turn with these calls, and the trajectory."""
    trajectory = await Bench(Kit, [Turn("", calls)], limits=limits).runner.run(attempt_at(TASK))
    return trajectory.turns[0].results, trajectory


def call(tool_name: str, **arguments: Any) -> ToolCall:
    return ToolCall(tool_name, arguments)


async def test_calls_run_beside_each_other_and_are_answered_in_call_order() -> None:
    results, _ = await play(call("meet", name="a"), call("meet", name="b"), call("data"))
    assert [(r.call_id, r.name, r.text) for r in results] == [
        ("0", "meet", "a"),
        ("1", "meet", "b"),
        ("2", "data", '{"a": [1, "é"]}'),
    ]


async def test_a_serial_tool_runs_alone_and_in_its_place() -> None:
    logs = []

    class Kept(Kit):
        async def close(self) -> None:
            logs.append(self.log)

    calls = [call("nothing"), call("alone", name="x"), call("alone", name="y"), call("nothing")]
    await Bench(Kept, [Turn("", calls)]).runner.run(attempt_at(TASK))
    assert logs == [["nothing", "x begins", "x ends", "y begins", "y ends", "nothing"]]


@pytest.mark.parametrize(
    ("bad", "status", "told"),
    [
        (call("nonsense"), "error", "no tool 'nonsense'; tools: meet, alone, stop"),
        (call("refus"), "error", "did you mean 'refuse'?"),
        (call("meet"), "error", "name: Field required"),
        (call("refuse", n="many"), "error", "n: Input should be a valid integer"),
        (call("refuse", n=2), "error", "no, 2 times"),
        (call("hang"), "timeout", "timed out after 0.05 s"),
    ],
)
async def test_what_a_call_does_wrong_is_told_and_the_others_run(
    bad: ToolCall, status: str, told: str
) -> None:
    results, trajectory = await play(call("nothing"), bad, call("nothing"), tool_timeout_s=0.05)
    assert [r.status for r in results] == ["ok", status, "ok"]
    assert told in results[1].text
    assert (trajectory.outcome, trajectory.reward) == (Outcome.FINISHED, 2.0)


@pytest.mark.parametrize(
    ("calls", "outcome", "error"),
    [
        ([call("raise_")], Outcome.ENV_ERROR, "KeyError: 'mine'"),
        ([call("stop")], Outcome.ENV_ERROR, "StopIteration"),
        ([call("own_timeout")], Outcome.ENV_ERROR, "TimeoutError"),
        ([call("lose")], Outcome.INFRA_ERROR, "gone"),
        ([call("nothing"), call("lose"), call("nothing")], Outcome.INFRA_ERROR, "gone"),
    ],
)
async def test_other_errors_end_the_rollout(
    calls: list[ToolCall], outcome: Outcome, error: str
) -> None:
    results, trajectory = await play(*calls)
    assert (trajectory.outcome, trajectory.reward) == (outcome, None)
    assert error in trajectory.error
    assert [r.call_id for r in results] == [str(n) for n in range(len(calls))]


async def test_a_lost_box_explains_what_else_went_wrong() -> None:
    class Both(Kit):
        @tool
        async def lose(self) -> str:
            try:
                await asyncio.Event().wait()
            finally:
                raise SandboxLost("gone")

    bench = Bench(Both, [Turn("", (call("raise_"), call("lose")))])
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert trajectory.outcome is Outcome.INFRA_ERROR


async def test_text_that_is_not_whole_characters_ends_nothing() -> None:
    class Garbled(Kit):
        async def start(self) -> str:
            self.log = []
            return "start \udcff"

        @tool
        async def show(self) -> str:
            return "tool \udcff"

        async def reply(self, turn: Turn) -> str | None:
            return "reply \udcff"

    bench = Bench(Garbled, [Turn("", (call("show"),)), Turn("hm"), Turn("hm")])
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert trajectory.outcome is Outcome.TRUNCATED
    assert trajectory.turns[0].results[0].text == "tool \udcff"


async def test_a_call_that_waits_for_others_of_its_turn_is_not_timed_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tools, "AT_ONCE", 2)
    running, most = 0, 0

    class Slow(Kit):
        @tool
        async def slow(self) -> str:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.05)
            running -= 1
            return "done"

    bench = Bench(Slow, [Turn("", [call("slow")] * 8)], limits={"tool_timeout_s": 0.15})
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert [r.status for r in trajectory.turns[0].results] == ["ok"] * 8
    assert most == 2
