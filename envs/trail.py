"""Follow a trail of files to its end.

The box holds small files with random names. The prompt is the name of the first one; each file
holds the name of the next, and the last one a number, which is the answer. Nothing but reading
them with the shell tool tells it. Most trails are short and a few are long, so rollouts are
long-tailed, and a policy that was only shown short trails has to learn to go on.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from string import ascii_lowercase
from typing import Annotated

from pydantic import Field

from agentrl import Env, SandboxSpec, Task, ToolCall, ToolError, ToolResult, Turn, reward, tool

HOP_WEIGHTS = (0.25, 0.25, 0.2, *(0.2 / 3,) * 3, *(0.1 / 6,) * 6)
"""Share of trails with 1, 2, ... 12 files."""
EVAL_TASKS = 1024
LONG_HOPS = 7
"""Trails this long are never shown in the quickstart's warm-up; their reward is told apart."""
Share = Annotated[float, Field(ge=0, le=1)]


class Trail(Env):
    sandbox_spec = SandboxSpec(exec_timeout_s=10, max_output_bytes=2048)
    replayable = True

    max_hops: Annotated[int, Field(ge=1, le=len(HOP_WEIGHTS))] = len(HOP_WEIGHTS)
    decoys: Annotated[int, Field(ge=0, le=100)] = 0
    """Files beside the trail; they point to each other or hold numbers."""
    sums: Share = 0.0
    """Share of trails that end in a sum such as `17+25`; the answer is its result."""
    spare_turns: Annotated[int, Field(ge=0)] = 1
    """Turns beyond those a trail needs."""
    give_up: Share = 0.0
    """How often the demonstrator, having read a name, answers it instead of going on."""

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        numbers = range(EVAL_TASKS) if split == "eval" else count()
        return (cls._task(f"{split}-{n:06d}", is_eval=split == "eval") for n in numbers)

    @classmethod
    def _task(cls, task_id: str, *, is_eval: bool) -> Task:
        rng = random.Random(task_id)
        (hops,) = rng.choices(range(1, cls.max_hops + 1), HOP_WEIGHTS[: cls.max_hops])
        names = _names(rng, hops + cls.decoys, is_eval=is_eval)
        trail, decoys = names[:hops], names[hops:]
        if rng.random() < cls.sums:
            a, b = rng.randint(10, 499), rng.randint(10, 499)
            end, answer = f"{a}+{b}", str(a + b)
        else:
            end = answer = str(rng.randint(10, 999))
        files = dict(zip(trail, [*trail[1:], end], strict=True))
        for name in decoys:
            files[name] = rng.choice([*decoys, str(rng.randint(10, 999))])
        data = {"files": files, "trail": trail, "end": end, "answer": answer}
        return Task(task_id, prompt=trail[0], data=data)

    @classmethod
    def sandbox_for(cls, task: Task) -> SandboxSpec:
        return replace(cls.sandbox_spec, files=task.data["files"])

    async def start(self) -> str:
        data = self.task.data
        hops = len(data["trail"])
        needed = hops + (data["end"] != data["answer"]) + 1
        self.max_turns = needed + self.spare_turns
        self.metric("hops", hops)
        return self.task.prompt

    @tool
    async def sh(self, cmd: str) -> str:
        """Run a shell command in the folder of the files."""
        ran = await self.sandbox.exec(cmd)
        return ran.text or f"(exit code {ran.rc})"

    @tool
    async def calc(self, sum: str) -> str:
        """Add numbers, such as 17+25."""
        try:
            return str(_total(sum))
        except ValueError as error:
            raise ToolError(f"not a sum of numbers: {sum}") from error

    @reward
    async def reached(self) -> float:
        said = "" if not self.turns or self.turns[-1].calls else self.turns[-1].text.strip()
        is_reached = float(said == self.task.data["answer"])
        if len(self.task.data["trail"]) >= LONG_HOPS:
            self.metric(f"reached_at_{LONG_HOPS}_hops_or_more", is_reached)
        return is_reached

    def demo(self) -> Iterator[Turn]:
        data = self.task.data
        for name in data["trail"]:
            content = data["files"][name]
            yield _turn("sh", "cmd", f"cat {name}", content)
            if content != data["end"] and self.rng.random() < self.give_up:
                yield Turn(content)
                return
        if data["end"] != data["answer"]:
            yield _turn("calc", "sum", data["end"], data["answer"])
        yield Turn(data["answer"])


def _names(rng: random.Random, number: int, *, is_eval: bool) -> list[str]:
    """Different names; the first decides by its checksum which split may have it."""
    names: dict[str, None] = {}
    while len(names) < number:
        name = "".join(rng.choices(ascii_lowercase, k=3))
        if names or (zlib.crc32(name.encode()) % 10 == 0) == is_eval:
            names[name] = None
    return list(names)


def _total(text: str) -> int:
    return sum(int(number) for number in text.split("+"))


def _turn(tool_name: str, parameter: str, argument: str, result: str) -> Turn:
    """One call and what it will return, so that warm-up need not run it."""
    return Turn(
        calls=(ToolCall(tool_name, {parameter: argument}),),
        results=(ToolResult(call_id="0", name=tool_name, text=result),),
    )
