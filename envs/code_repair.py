"""Repair a small Python repository that has one bug.

The prompt is a user's report of a call that goes wrong; where the bug is has to be found. Every
repository is drawn anew: its modules, how they are spelled, and what is broken in which way.

Grading believes nothing that the policy's code can make. Only the text of the modules that were
there from the start is carried into a fresh box, without any file of the policy's own. There the
modules answer calls that were drawn after the rollout, and their answers are compared out here
with those of the correct code, which no box ever holds. So there is no test to satisfy, patch or
leave early: code that exits, prints that it passed or redefines `==` has not answered.
"""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from random import Random
from typing import Annotated

from pydantic import Field

from agentrl import (
    Env,
    Sandbox,
    SandboxSpec,
    Task,
    ToolCall,
    ToolError,
    ToolResult,
    Turn,
    UnsafePath,
    reward,
    tool,
)
from envs.code_repair_bugs import BugKind
from envs.code_repair_calls import answers
from envs.code_repair_library import MODULES
from envs.code_repair_repository import Repository, draw_repository

EVAL_TASKS = 1024
RUN_TESTS = "python3 -m unittest 2>&1 | tail -n 1"
FILE_BYTES = 64 * 1024
"""Of a file that is read; modules have a few thousand."""
ANSWER_BYTES = 1024 * 1024
"""Of output that is looked at; the answers are at its end, after whatever the modules print."""
ANSWERING = f"""\
from __future__ import annotations
import importlib, json, os, sys
{inspect.getsource(answers)}
request = json.load(sys.stdin)
sys.path.insert(0, os.getcwd())
said = answers(importlib.import_module, request["calls"])
print()
print(request["nonce"], *said, flush=True)
"""
"""Runs in the box that grades. All answers stand on one line, so none can be guessed singly, and
the line begins with a number that the modules could not print before they were asked."""


class CodeRepair(Env):
    system = (
        "You repair small Python repositories. Find out why the reported call goes wrong, edit the "
        "module that is to blame, run the tests with `python3 -m unittest`, and submit. All functions "
        "are tested again afterwards, with the modules alone: new files are not kept."
    )
    max_turns = 16
    sandbox_spec = SandboxSpec(exec_timeout_s=20, max_output_bytes=8192, verify="fresh")
    replayable = True

    modules: Annotated[int, Field(ge=1, le=len(MODULES))] = 4
    """At most so many are drawn for a repository; those that they import come with them."""
    bugs: Annotated[tuple[BugKind, ...], Field(min_length=1)] = tuple(BugKind)
    """What may be wrong."""

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        """Names alone: a repository takes milliseconds to draw, and is drawn when it is needed."""
        numbers = range(EVAL_TASKS) if split == "eval" else count()
        return (Task(f"{split}-{n:06d}") for n in numbers)

    @classmethod
    def repository(cls, task: Task) -> Repository:
        is_eval = task.id.startswith("eval")
        return draw_repository(task.id, is_eval=is_eval, max_modules=cls.modules, kinds=cls.bugs)

    @classmethod
    def sandbox_for(cls, task: Task) -> SandboxSpec:
        return replace(cls.sandbox_spec, files=cls.repository(task).files)

    async def start(self) -> str:
        repository = self.repository(self.task)
        self.metric("modules", len(repository.sources.texts))
        return f"{repository.telling[0].report} Please repair it."

    @tool
    async def bash(self, cmd: Annotated[str, "shell command"]) -> str:
        """Run a command in the folder of the repository."""
        ran = await self.sandbox.exec(["bash", "-c", cmd])
        if ran.timed_out:
            return f"{ran.text}(killed after {self.sandbox.spec.exec_timeout_s:g} s)"
        return ran.text + (f"(exit code {ran.rc})" if ran.rc else "")

    @tool
    async def read(self, path: str) -> str:
        """The text of a file."""
        try:
            return await self.sandbox.read_text(path, max_bytes=FILE_BYTES)
        except (OSError, UnsafePath) as error:
            raise ToolError(f"cannot read {path}: {error}") from error

    @tool(serial=True)
    async def edit(
        self,
        path: str,
        old: Annotated[str, "text that occurs exactly once in the file"],
        new: Annotated[str, "text to put in its place"],
    ) -> str:
        """Replace a text in a file."""
        text = await self.read(path)
        if text.count(old) != 1:
            raise ToolError(f"`old` occurs {text.count(old)} times in {path}, wanted exactly once")
        try:
            await self.sandbox.write(path, text.replace(old, new))
        except (OSError, UnsafePath) as error:
            raise ToolError(f"cannot write {path}: {error}") from error
        return "edited"

    @tool(serial=True)
    async def submit(self) -> str:
        """Say that the repository is repaired."""
        self.finish("submitted")
        return "submitted"

    @reward
    async def repaired(self) -> float:
        repository = self.repository(self.task)
        try:
            async with self.sandbox.verifier(keep=repository.source_files) as box:
                is_repaired = await _answers_rightly(box, repository)
        except (OSError, UnsafePath):  # a module is no plain file any more
            is_repaired = False
        self.metric(f"repaired/{repository.kind}", is_repaired)
        return float(is_repaired)

    def demo(self) -> Iterator[Turn]:
        """Reads the module that the report names, then, if it is another, the broken one."""
        repository = self.repository(self.task)
        path, old, new = repository.repair
        for module in dict.fromkeys([repository.telling[0].call.module, repository.broken]):
            name = f"{module}.py"
            yield _turn("read", {"path": name}, repository.files[name])
        yield _turn("edit", {"path": path, "old": old, "new": new}, "edited")
        yield _turn("bash", {"cmd": RUN_TESTS}, "OK\n")
        yield _turn("submit", {}, "submitted")


async def _answers_rightly(box: Sandbox, repository: Repository) -> bool:
    nonce = secrets.token_hex(16)
    calls = repository.hidden_calls(Random(nonce))
    # -I and -S: neither the environment nor a file that Python would import by itself has a say
    ran = await box.exec(
        ["python3", "-I", "-S", "-c", ANSWERING],
        stdin=json.dumps({"nonce": nonce, "calls": calls}).encode(),
        max_output_bytes=ANSWER_BYTES,
    )
    # compared as text: what came out of the box is not even parsed
    expected = " ".join([nonce, *repository.right_answers(calls)])
    return expected.encode() in ran.out.split(b"\n")


def _turn(name: str, arguments: dict[str, str], result: str) -> Turn:
    """One call and what it will return, so that warm-up need not run it."""
    return Turn(
        calls=(ToolCall(name, arguments),),
        results=(ToolResult(call_id="0", name=name, text=result),),
    )
