"""Attempts that take their time and can go on in another process: an environment, and what a run of
it left of each attempt."""

from __future__ import annotations

import copy
from typing import Any

from training import SMALL, Training

from agentrl.record.journal import JournaledAttempt, journal_parts, read_journal
from agentrl.record.reader import RunReader
from agentrl.types import Trajectory

SLOW = """
import asyncio
from itertools import count
from agentrl import Env, SandboxSpec, Task, ToolCall, ToolResult, Turn, reward, tool

class Slow(Env):
    \"\"\"Calls a tool that takes its time and leaves a note in the box, four times.\"\"\"

    sandbox_spec = SandboxSpec(files={"notes.txt": ""})
    max_turns = 4
    replayable = True

    @classmethod
    def tasks(cls, split):
        return (Task(f"{split}-{n}", "go") for n in (range(2) if split == "eval" else count()))

    @tool
    async def s(self) -> str:
        number = len(self.turns)
        await asyncio.sleep(0.2 + (3 if number == 3 else 0.3) * self.rng.random())
        await self.sandbox.exec(f"echo {number} >> notes.txt")
        return str((await self.sandbox.exec("cat notes.txt")).text.split())

    @reward
    async def luck(self):
        return self.rng.random()

    def demo(self):
        for number in range(1, 5):
            notes = str([str(n) for n in range(1, number + 1)])
            result = ToolResult(call_id="0", name="s", text=notes)
            yield Turn(calls=(ToolCall("s"),), results=(result,))
"""


def config() -> dict[str, Any]:
    changed = copy.deepcopy(SMALL)
    changed["env"] = {"name": "slow.py:Slow"}
    changed["warmup"] = {"steps": 250, "batch_tokens": 768, "row_tokens": 192, "warmup_steps": 5}
    changed["rollout"] |= {"max_trajectory_tokens": 256, "context_tokens": 512}
    changed["train"] |= {"steps": 5}
    changed["eval"] = {"every_steps": 0, "tasks": 2}
    changed["runtime"] |= {"stall_timeout_s": 200}
    return changed


def journal(training: Training) -> dict[str, JournaledAttempt]:
    return read_journal(journal_parts(training.run / "journal"))


def in_mid_conversation(training: Training) -> list[JournaledAttempt]:
    return [
        attempt
        for attempt in journal(training).values()
        if attempt.ended is None and attempt.split == "train" and attempt.turns
    ]


def played(training: Training) -> dict[str, Trajectory]:
    """Training attempts that count, of all launches."""
    reader = RunReader(training.run)
    return {
        row.trajectory_id: reader.trajectory(row).trajectory for row in reader.rows(split="train")
    }


def ids_of(trajectory: Trajectory) -> list[int]:
    return [int(i) for row in trajectory.rows for segment in row for i in segment.ids]


def known_ids(attempt: JournaledAttempt) -> list[int]:
    ids = list(attempt.prompt_ids)
    for turn in attempt.turns:
        ids += turn.ids
        ids += turn.answer.ids if turn.answer is not None else ()
    return ids
