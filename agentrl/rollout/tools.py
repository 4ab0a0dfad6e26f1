"""Runs the tool calls of one turn.

Invariants
- Every call is answered exactly once, and answers are in call order.
- What the policy does wrong (an unknown tool, wrong arguments) and what a tool refuses
  (`ToolError`) or does not do in time is text for the model. Anything else a tool raises is an
  error of the environment or of the infrastructure, and is raised here.
- No result is longer than `TextBound` lets it be.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from agentrl.env import Env, ToolError, ToolSpec, nearest
from agentrl.rollout.dispatch import Dispatcher
from agentrl.rollout.text_bound import TextBound
from agentrl.rollout.usercode import INFRASTRUCTURE, UserCodeError, blaming, call
from agentrl.schema import ArgumentError
from agentrl.types import ToolCall, ToolResult

AT_ONCE = 32
"""Calls of one turn: however many a policy writes, each begun one may need a thread or a process."""


class ToolRunner:
    def __init__(
        self,
        tools: Mapping[str, ToolSpec],
        *,
        timeout_s: float,
        dispatcher: Dispatcher,
        bound: TextBound,
        clock: Callable[[], float],
    ) -> None:
        self._tools = tools
        self._bound = bound
        self._timeout_s = timeout_s
        self._dispatcher = dispatcher
        self._clock = clock

    async def run(
        self, env: Env, calls: Sequence[ToolCall], *, trajectory_id: str, turn: int
    ) -> tuple[ToolResult, ...]:
        """All calls beside each other; one of a serial tool alone, after all before it."""
        results: list[ToolResult] = []
        at_once = asyncio.Semaphore(AT_ONCE)

        async def answer(requested: ToolCall) -> ToolResult:
            async with at_once:
                return await self._timed(env, requested, trajectory_id, turn)

        for batch in self._batches(calls):
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(answer(requested)) for requested in batch]
            except ExceptionGroup as failed:
                error = _to_blame(failed)
                raise error from error.__cause__
            results += [task.result() for task in tasks]
        return tuple(results)

    def _batches(self, calls: Sequence[ToolCall]) -> Iterator[list[ToolCall]]:
        batch: list[ToolCall] = []
        for requested in calls:
            spec = self._tools.get(requested.name)
            if spec is None or not spec.serial:
                batch.append(requested)
                continue
            if batch:
                yield batch
            yield [requested]
            batch = []
        if batch:
            yield batch

    async def _timed(
        self, env: Env, requested: ToolCall, trajectory_id: str, turn: int
    ) -> ToolResult:
        self._dispatcher.tool_started(trajectory_id, turn, requested)
        begun = self._clock()
        result = await self._answer(env, requested)
        text, seconds = self._bound.cut(result.text), self._clock() - begun
        result = replace(result, text=text, seconds=seconds)
        self._dispatcher.tool_returned(trajectory_id, turn, requested, result)
        return result

    async def _answer(self, env: Env, requested: ToolCall) -> ToolResult:
        spec = self._tools.get(requested.name)
        if spec is None:
            return result_of(requested, self._unknown(requested.name), "error")
        if requested.error is not None:
            return result_of(requested, requested.error, "error")
        try:
            arguments = spec.schema.validate(requested.arguments)
        except ArgumentError as error:
            return result_of(requested, str(error), "error")
        try:
            async with asyncio.timeout(self._timeout_s):
                value = await call(getattr(env, requested.name), **arguments)
            with blaming(requested.name):
                return result_of(requested, _text(value), "ok")
        except TimeoutError:
            return result_of(requested, f"timed out after {self._timeout_s:g} s", "timeout")
        except UserCodeError as error:
            if isinstance(error.__cause__, ToolError):
                return result_of(requested, str(error.__cause__), "error")
            raise

    def _unknown(self, name: str) -> str:
        return f"no tool {name!r}{nearest(name, self._tools)}; tools: {', '.join(self._tools)}"


def result_of(
    requested: ToolCall, text: str, status: Literal["ok", "error", "timeout"]
) -> ToolResult:
    return ToolResult(call_id=requested.id, name=requested.name, text=text, status=status)


def _text(value: Any) -> str:
    """What a tool returned, as the model sees it."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _to_blame(failed: ExceptionGroup[Exception]) -> Exception:
    """The one error that stands for all: a lost box explains what else went wrong."""
    errors = failed.exceptions
    return next((error for error in errors if isinstance(error, INFRASTRUCTURE)), errors[0])
