"""Boxes and engines in memory, and a runner wired to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from agentrl import Env, Task, Turn
from agentrl.chat.plain import PlainFormat
from agentrl.engine.engine import FinishReason, GenerateRequest, Sampling, TokenChunk
from agentrl.models.tokenizer import byte_tokenizer
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.dispatch import TurnEngine
from agentrl.rollout.local import LocalDispatcher, ScriptedEngine
from agentrl.rollout.runner import RolloutRunner
from agentrl.types import Outcome, ToolCall, ToolResult
from sandboxes.sandbox import ExecResult, SandboxLost
from sandboxes.spec import SandboxSpec

TOKENIZER = byte_tokenizer().backend_tokenizer
END = TOKENIZER.token_to_id("<end>")


@dataclass
class MemoryBox:
    """Knows `cat`; `lost` makes every command fail as a dead box does."""

    spec: SandboxSpec
    sandbox_id: str = "memory"
    lost: bool = False
    closed: bool = False

    async def exec(self, command: str | Sequence[str], **options: Any) -> ExecResult:
        if self.lost:
            raise SandboxLost("the box is gone")
        assert isinstance(command, str)
        content = self.spec.files.get(command.removeprefix("cat "), b"")
        out = content.encode() if isinstance(content, str) else content
        return ExecResult(rc=0, out=out, err=b"", out_bytes=len(out), err_bytes=0)

    async def read(self, path: str, *, max_bytes: int = 0) -> bytes:
        return (await self.read_text(path)).encode()

    async def read_text(self, path: str, *, max_bytes: int = 0) -> str:
        return (await self.exec(f"cat {path}")).text

    async def write(self, path: str, data: bytes | str) -> None:
        raise NotImplementedError

    async def upload(self, files: Any) -> None:
        raise NotImplementedError

    async def download(self, path: str, *, max_bytes: int = 0) -> dict[str, bytes]:
        raise NotImplementedError

    async def alive(self) -> bool:
        return not self.lost

    async def close(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


@dataclass
class MemorySource:
    """`refusal` is what asking for a box raises."""

    lost: bool = False
    refusal: Exception | None = None
    boxes: list[MemoryBox] = field(default_factory=list)

    @asynccontextmanager
    async def lease(self, spec: SandboxSpec) -> AsyncIterator[MemoryBox]:
        if self.refusal is not None:
            raise self.refusal
        self.boxes.append(box := MemoryBox(spec, lost=self.lost))
        async with box:
            yield box


@dataclass
class ChunkEngine:
    """Plays prepared chunks: one list of them a request. Exceptions among them are raised."""

    plans: Iterable[Iterable[TokenChunk | Exception]]
    requests: list[GenerateRequest] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._plans = iter(self.plans)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        self.requests.append(request)
        for chunk in next(self._plans):
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def release(self, session_id: str) -> None:
        self.released.append(session_id)


def chunk(ids: Sequence[int], finish: FinishReason | None = None, version: int = 0) -> TokenChunk:
    return TokenChunk(
        ids=ids,
        logprobs=[-0.5] * len(ids),
        policy_versions=[version] * len(ids),
        finish_reason=finish,
    )


class Recording(LocalDispatcher):
    """A local dispatcher that writes down what it is told."""

    def __init__(self, engine: TurnEngine) -> None:
        super().__init__(engine)
        self.heard: list[tuple[Any, ...]] = []

    def submitted(
        self, attempt: Attempt, prompt_tokens: int, turn_tokens: Sequence[int] = ()
    ) -> None:
        self.heard.append(("submitted", prompt_tokens, *turn_tokens))

    def progress(self, trajectory_id: str, turn: int, num_tokens: int) -> None:
        self.heard.append(("progress", turn, num_tokens))

    def turn_finished(
        self, trajectory_id: str, turn: int, *, num_tokens: int, context_tokens: int
    ) -> None:
        self.heard.append(("turn_finished", turn, num_tokens, context_tokens))

    def tool_started(self, trajectory_id: str, turn: int, call: ToolCall) -> None:
        self.heard.append(("tool_started", turn, call.id))

    def tool_returned(
        self, trajectory_id: str, turn: int, call: ToolCall, result: ToolResult
    ) -> None:
        self.heard.append(("tool_returned", turn, call.id, result.status))

    def finished(self, trajectory_id: str, outcome: Outcome, num_tokens: int) -> None:
        self.heard.append(("finished", outcome, num_tokens))


def attempt_at(task: Task, **changes: Any) -> Attempt:
    defaults: dict[str, Any] = {"trajectory_id": "g-0", "group_id": "g", "sibling": 0}
    return Attempt(task=task, **(defaults | changes))


@dataclass
class Bench:
    """A runner with an engine that plays `turns`, unless it is given another engine."""

    env_class: type[Env]
    turns: Sequence[Turn] = ()
    engine: TurnEngine | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    sandboxes: MemorySource = field(default_factory=MemorySource)
    clock: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        self.chat = PlainFormat(TOKENIZER, self.env_class.definition().schemas)
        if self.engine is None:
            self.engine = scripted = ScriptedEngine(self.chat)
            scripted.follow("g-0", iter(self.turns))
        self.dispatcher = Recording(self.engine)
        self.runner = RolloutRunner(
            env_class=self.env_class,
            chat=self.chat,
            limits=RolloutLimits(**self.limits),
            sampling=Sampling(),
            dispatcher=self.dispatcher,
            sandboxes=self.sandboxes,
            run_seed=7,
            **({} if self.clock is None else {"clock": self.clock}),
        )
