"""Placement of a runner's turns by the coordinator: the runner's events out, its places in.

Translates between a rollout's words (a turn is ready, a tool has returned) and the scheduler's
events, and keeps the futures of turns that wait for a place. A place on a worker that this runner
does not know, knows in another generation or has lost the connection to, is rejected with an event
and asked for again by the scheduler itself, of another worker.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from agentrl.engine.engine import EngineError
from agentrl.record.jsonl import to_line
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.dispatch import Placed, TurnEngine, TurnRequest
from agentrl.runtime.prewarming import Prewarming
from agentrl.types import Outcome, ToolCall, ToolResult
from scheduler.decisions import Decision, Place, Prewarm, Requeue
from scheduler.events import (
    Event,
    Failed,
    FailureKind,
    Finished,
    PlaceRejected,
    Progress,
    Role,
    Submitted,
    ToolReturned,
    ToolStarted,
    ToolStatus,
    TurnFinished,
    TurnReady,
)

log = structlog.get_logger(__name__)

BYTES_PER_TOKEN = 4
"""Of tool text, roughly: the scheduler wants a size in tokens before the text is tokenized."""
PROGRESS_EVERY_TOKENS = 64
"""A forecast needs to know that a turn is long, not each of its tokens. Chunks end anywhere, so it
is told with the first that ends beyond another so many."""
_FAILURES = {
    Outcome.ENV_ERROR: FailureKind.ENV,
    Outcome.INFRA_ERROR: FailureKind.INFRA,
    Outcome.CANCELLED: FailureKind.CANCELLED,
}


class WorkerEngine(TurnEngine, Protocol):
    async def abort(self, request_id: str) -> None: ...
    async def prefill(self, session_id: str, ids: Sequence[int]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAddress:
    """Where a worker of this generation serves."""

    worker_id: str
    generation: int
    bucket: str
    url: str


@dataclass(frozen=True, slots=True)
class Serving:
    """A worker's engine, as this process reaches it."""

    bucket: str
    engine: WorkerEngine


@dataclass(frozen=True, slots=True)
class _Waiting:
    turn: int
    generation: int
    request_id: str
    place: asyncio.Future[Placed]


@dataclass(frozen=True, slots=True)
class _Running:
    """A turn on an engine."""

    turn: int
    generation: int
    request_id: str
    engine: WorkerEngine


class CoordinatedDispatcher:
    """`Dispatcher` of one runner; `on_decision` is called by its link."""

    def __init__(
        self, tell: Callable[[Event], None], reach: Callable[[str, int], Serving | None]
    ) -> None:
        """`reach` gives the worker of a generation; None where this runner does not reach it."""
        self._tell = tell
        self._reach = reach
        self._waiting: dict[str, _Waiting] = {}
        self._running: dict[str, _Running] = {}
        self._generations: dict[str, int] = {}
        self._asked: dict[str, TurnRequest] = {}
        """The newest of each attempt."""
        self._told: dict[str, int] = {}
        """How many times `PROGRESS_EVERY_TOKENS` each turn under way was last said to have."""
        self._prewarming = Prewarming()
        self._aborting: set[asyncio.Task[None]] = set()

    def on_decision(self, decision: Decision) -> None:
        match decision:
            case Place():
                self._place(decision)
            case Requeue():
                self._requeue(decision)
            case Prewarm():
                self._prewarm(decision)
            case _:
                raise AssertionError(f"not for a runner: {decision}")

    # ------------------------------------------------------------------- what a rollout says

    def submitted(
        self, attempt: Attempt, prompt_tokens: int, turn_tokens: Sequence[int] = ()
    ) -> None:
        self._generations[attempt.trajectory_id] = 0
        self._tell(
            Submitted(
                trajectory_id=attempt.trajectory_id,
                group_id=attempt.group_id,
                prompt_tokens=prompt_tokens,
                is_eval=attempt.split != "train",
                turn_tokens=tuple(turn_tokens),
            )
        )

    def asked(self, ask_id: str, group_id: str, prompt_tokens: int) -> None:
        self._generations[ask_id] = 0
        self._tell(
            Submitted(
                trajectory_id=ask_id,
                group_id=group_id,
                task_family="judge",
                prompt_tokens=prompt_tokens,
                role=Role.GENRM,
            )
        )

    async def turn_ready(self, request: TurnRequest) -> Placed:
        trajectory_id = request.trajectory_id
        self._generations[trajectory_id] = request.replacements
        self._asked[trajectory_id] = request
        place: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(request.turn, request.replacements, request.request_id, place)
        self._waiting[trajectory_id] = waiting
        self._running.pop(trajectory_id, None)
        self._tell(
            TurnReady(
                trajectory_id=trajectory_id,
                generation=request.replacements,
                turn=request.turn,
                context_tokens=request.context_tokens,
            )
        )
        try:
            return await place
        finally:
            if self._waiting.get(trajectory_id) is waiting:
                del self._waiting[trajectory_id]

    def progress(self, trajectory_id: str, turn: int, num_tokens: int) -> None:
        stretches = num_tokens // PROGRESS_EVERY_TOKENS
        if stretches == self._told.get(trajectory_id, 0):
            return
        self._told[trajectory_id] = stretches
        self._tell(
            Progress(
                trajectory_id=trajectory_id,
                generation=self._generations[trajectory_id],
                turn=turn,
                tokens=num_tokens,
            )
        )

    def turn_finished(
        self, trajectory_id: str, turn: int, *, num_tokens: int, context_tokens: int
    ) -> None:
        self._running.pop(trajectory_id, None)
        self._told.pop(trajectory_id, None)
        self._tell(
            TurnFinished(
                trajectory_id=trajectory_id,
                generation=self._generations[trajectory_id],
                turn=turn,
                tokens=num_tokens,
                context_tokens=context_tokens,
            )
        )

    def tool_started(self, trajectory_id: str, turn: int, call: ToolCall) -> None:
        self._tell(
            ToolStarted(
                trajectory_id=trajectory_id,
                generation=self._generations[trajectory_id],
                turn=turn,
                call_id=call.id,
                tool=call.name,
            )
        )

    def tool_returned(
        self, trajectory_id: str, turn: int, call: ToolCall, result: ToolResult
    ) -> None:
        self._tell(
            ToolReturned(
                trajectory_id=trajectory_id,
                generation=self._generations[trajectory_id],
                turn=turn,
                call_id=call.id,
                tool=call.name,
                status=ToolStatus(result.status),
                size_tokens=len(result.text) // BYTES_PER_TOKEN,
                seconds=result.seconds,
                call_hash=f"{zlib.crc32(to_line([call.name, dict(call.arguments)])):08x}",
            )
        )

    def finished(self, trajectory_id: str, outcome: Outcome, num_tokens: int) -> None:
        self._running.pop(trajectory_id, None)
        self._asked.pop(trajectory_id, None)
        self._told.pop(trajectory_id, None)
        self._prewarming.settle(trajectory_id, None)
        generation = self._generations.pop(trajectory_id, 0)
        kind = _FAILURES.get(outcome)
        self._tell(
            Finished(
                trajectory_id=trajectory_id,
                generation=generation,
                tokens=num_tokens,
            )
            if kind is None
            else Failed(trajectory_id=trajectory_id, generation=generation, kind=kind)
        )

    # ------------------------------------------------------------------------------- places

    def _place(self, decision: Place) -> None:
        waiting = self._waiting.get(decision.trajectory_id)
        if (
            waiting is None
            or (waiting.turn, waiting.generation) != (decision.turn, decision.generation)
            or waiting.place.done()
        ):
            return  # the attempt has ended or asked again: its own event has freed the slot
        serving = self._reach(decision.worker_id, decision.worker_generation)
        if serving is None:
            self._tell(
                PlaceRejected(
                    trajectory_id=decision.trajectory_id,
                    generation=decision.generation,
                    turn=decision.turn,
                    worker_id=decision.worker_id,
                    worker_generation=decision.worker_generation,
                )
            )
            return
        self._running[decision.trajectory_id] = _Running(
            waiting.turn, waiting.generation, waiting.request_id, serving.engine
        )
        self._prewarming.settle(decision.trajectory_id, serving.engine)
        waiting.place.set_result(Placed(decision.worker_id, serving.bucket, serving.engine))

    def _prewarm(self, decision: Prewarm) -> None:
        """While a tool runs; late where the next turn was asked for meanwhile."""
        name = decision.trajectory_id
        serving = self._reach(decision.worker_id, decision.worker_generation)
        rests = name in self._asked and name not in self._waiting and name not in self._running
        is_current = self._generations.get(name) == decision.generation
        if serving is not None and rests and is_current:
            self._prewarming.begin(self._asked[name], serving.engine)

    def _requeue(self, decision: Requeue) -> None:
        """End the turn at its engine: its tokens so far arrive, and the rollout asks again.

        Where the engine is gone, the broken connection tells the rollout the same.
        """
        running = self._running.get(decision.trajectory_id)
        if running is None or (running.turn, running.generation) != (
            decision.turn,
            decision.generation,
        ):
            return
        aborting = asyncio.create_task(_abort(running), name=f"abort {running.request_id}")
        self._aborting.add(aborting)
        aborting.add_done_callback(self._aborting.discard)


async def _abort(running: _Running) -> None:
    try:
        await running.engine.abort(running.request_id)
    except EngineError as error:
        log.info("an engine could not abort a turn", request=running.request_id, error=str(error))
