"""What a rollout asks of whoever runs it: a place for each turn, and a box.

The runtime implements these over its scheduler and its sandbox pool; `agentrl.rollout.local` over
one engine in the same process. Notifications are plain calls that must not block: they report
what has happened, and nothing waits for them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from agentrl.engine.engine import GenerateRequest, TokenChunk
from agentrl.rollout.attempt import Attempt
from agentrl.types import Outcome, ToolCall, ToolResult
from sandboxes.sandbox import Sandbox
from sandboxes.spec import SandboxSpec


class TurnEngine(Protocol):
    """The part of `agentrl.engine.engine.Engine` that serves turns."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]: ...
    async def release(self, session_id: str) -> None: ...


class Placed(NamedTuple):
    worker_id: str
    bucket: str
    engine: TurnEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """The context is complete and the policy should speak."""

    trajectory_id: str
    session_id: str
    """Under which engines hold the context; an attempt that went on elsewhere has another one."""
    request_id: str
    """Of the request that will go to the engine, so that whoever placed it can abort it there."""
    turn: int
    context_tokens: int
    context: Callable[[], Sequence[int]]
    """The ids there are when it is called: of this turn's context now, with what was sampled later."""
    replacements: int
    """How often this trajectory has lost its place in the middle of a turn. One more than in the
    request before: that place is given up, and this asks for another for the same turn."""


class Dispatcher(Protocol):
    def submitted(
        self, attempt: Attempt, prompt_tokens: int, turn_tokens: Sequence[int] = ()
    ) -> None:
        """An attempt begins; with `turn_tokens`, the sampled tokens of each turn that it had
        finished in another process, it goes on."""
        ...

    def asked(self, ask_id: str, group_id: str, prompt_tokens: int) -> None:
        """A judge is asked: from here on a trajectory of one turn, which a judge's worker serves."""
        ...

    async def turn_ready(self, request: TurnRequest) -> Placed:
        """Wait for a place. Cancelled when the attempt ends meanwhile."""
        ...

    def progress(self, trajectory_id: str, turn: int, num_tokens: int) -> None:
        """`num_tokens` were sampled so far in this turn."""
        ...

    def turn_finished(
        self, trajectory_id: str, turn: int, *, num_tokens: int, context_tokens: int
    ) -> None:
        """The policy has spoken, or a limit cut it off; the place is free."""
        ...

    def tool_started(self, trajectory_id: str, turn: int, call: ToolCall) -> None: ...

    def tool_returned(
        self, trajectory_id: str, turn: int, call: ToolCall, result: ToolResult
    ) -> None: ...

    def finished(self, trajectory_id: str, outcome: Outcome, num_tokens: int) -> None:
        """Nothing more is sampled; all the attempt held is free, and only its score may be open.
        `outcome`: what is known of it by then. `num_tokens`: sampled."""
        ...


class SandboxSource(Protocol):
    def lease(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh box with its files in place, for as long as the block lasts.

        Entering raises SandboxError when there is none in time, and OSError or ValueError when none
        can be as the spec asks; leaving raises nothing.
        """
        ...
