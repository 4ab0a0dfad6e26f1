"""Contexts that an engine computes ahead of a move, while the trajectory waits for a tool.

The scheduler orders it when it expects to move a trajectory after its tool call. The target then
holds all but what the tool will say, so the next turn starts there as if it had always been there.

Invariants
- Only what rests is computed ahead; an order that comes after the next turn was asked for is late.
- What was computed where the next turn is not placed is let go of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

import structlog

from agentrl.engine.engine import EngineError
from agentrl.rollout.dispatch import TurnRequest

log = structlog.get_logger(__name__)


class PrewarmEngine(Protocol):
    async def prefill(self, session_id: str, ids: Sequence[int]) -> None: ...
    async def release(self, session_id: str) -> None: ...


class _Warm(NamedTuple):
    session_id: str
    engine: PrewarmEngine
    computing: asyncio.Task[None]


class Prewarming:
    """Of the trajectories of one runner."""

    def __init__(self) -> None:
        self._warm: dict[str, _Warm] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, last: TurnRequest, engine: PrewarmEngine) -> None:
        """Compute the context of a trajectory that rests since its last turn. Another place for it
        is let go of."""
        self.settle(last.trajectory_id, engine)
        computing = self._start(engine.prefill(last.session_id, last.context()))
        self._warm[last.trajectory_id] = _Warm(last.session_id, engine, computing)

    def settle(self, trajectory_id: str, engine: object) -> None:
        """The next turn is served by `engine`; None when there is none any more."""
        warm = self._warm.pop(trajectory_id, None)
        if warm is not None and warm.engine is not engine:
            self._start(_let_go(warm))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(_spared(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _let_go(warm: _Warm) -> None:
    await warm.computing
    await warm.engine.release(warm.session_id)


async def _spared(work: Coroutine[Any, Any, None]) -> None:
    """An engine that is lost meanwhile costs what was computed there and nothing else."""
    try:
        await work
    except EngineError as error:
        log.info("a context was not computed ahead", error=str(error))
