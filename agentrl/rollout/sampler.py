"""Samples the turns of one trajectory, wherever each is placed.

Tokens are appended to the builder as they stream in, so nothing that was sampled is ever lost: when
an engine lets go of a turn or breaks, the turn is placed again with those tokens in its context.

Invariants
- Limits are spent here: no request asks for more than is left, nothing left ends the turn.
- A seed belongs to one draw: it is made of run, split, task, sibling, attempt, turn, and the
  tokens the turn had when the request was made. No worker has a part in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import structlog

from agentrl.engine.engine import EngineError, FinishReason, GenerateRequest, Sampling
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.dispatch import Dispatcher, Placed, TurnEngine, TurnRequest
from agentrl.rollout.standstill import standing_still
from agentrl.rollout.tokens import TokenBuilder
from agentrl.types import Placement, StopReason

log = structlog.get_logger(__name__)

MAX_FRUITLESS_TRIES = 8
"""Places of one turn, one after another, that may end without a token."""


class TurnSampler:
    def __init__(
        self,
        *,
        trajectory_id: str,
        session_id: str,
        dispatcher: Dispatcher,
        limits: RolloutLimits,
        sampling: Sampling,
        seed: Callable[[int, int], int],
    ) -> None:
        """`seed(turn, tokens)`; `sampling` holds the stop ids. Engines know the trajectory as
        `session_id`, which is another one in every process that plays it."""
        self._trajectory_id = trajectory_id
        self._session_id = session_id
        self._dispatcher = dispatcher
        self._limits = limits
        self._sampling = sampling
        self._seed = seed
        self._held: Placed | None = None
        self._num_requests = 0
        self._num_replacements = 0
        self.deadline: asyncio.Timeout | None = None
        """Of the attempt; it stands still while a turn waits for its place."""
        self.placements: list[Placement] = []

    async def sample(self, tokens: TokenBuilder, turn: int) -> StopReason | None:
        """Append one turn. Returns the limit that cut it, None when it came to its own end.

        Raises `EngineError` when no place serves it.
        """
        before = tokens.num_sampled
        fruitless, broken = 0, None
        while fruitless < MAX_FRUITLESS_TRIES:
            sampled = tokens.num_sampled
            budget = self._limits.turn_budget(
                context=len(tokens), sampled=sampled, in_turn=sampled - before
            )
            if budget.tokens <= 0:
                return budget.reason
            try:
                finish = await self._generate(tokens, turn, before, budget.tokens)
            except EngineError as error:
                log.warning("an engine failed a turn", trajectory=self._trajectory_id, turn=turn)
                finish, broken = FinishReason.ABORTED, error
            match finish:
                case FinishReason.STOP:
                    return None
                case FinishReason.LENGTH:
                    return budget.reason
                case FinishReason.ABORTED:
                    fruitless = 0 if tokens.num_sampled > sampled else fruitless + 1
                    self._num_replacements += 1
        raise EngineError(
            f"turn {turn} of {self._trajectory_id}: {fruitless} places in a row gave no token"
        ) from broken

    async def release(self) -> None:
        """Let go of the keys and values that the last engine holds."""
        if self._held is None:
            return
        held, self._held = self._held, None
        try:
            await held.engine.release(self._session_id)
        except EngineError as error:
            # an engine that cannot be reached holds nothing for us any more
            log.info("an engine could not release", worker=held.worker_id, error=str(error))

    async def _generate(
        self, tokens: TokenBuilder, turn: int, before: int, max_new_tokens: int
    ) -> FinishReason:
        request_id = f"{self._session_id}/{self._num_requests}"
        engine = await self._place(tokens, turn, request_id)
        request = GenerateRequest(
            request_id=request_id,
            session_id=self._session_id,
            ids=tokens.context_ids,
            max_new_tokens=max_new_tokens,
            sampling=replace(self._sampling, seed=self._seed(turn, tokens.num_sampled - before)),
        )
        self._num_requests += 1
        in_turn = tokens.num_sampled - before
        async for chunk in engine.generate(request):
            tokens.sampled(chunk.ids, chunk.logprobs, chunk.policy_versions)
            in_turn += len(chunk.ids)
            self._dispatcher.progress(self._trajectory_id, turn, in_turn)
            if chunk.finish_reason is not None:
                return chunk.finish_reason
        raise AssertionError("an engine's last chunk has a finish reason")

    async def _place(self, tokens: TokenBuilder, turn: int, request_id: str) -> TurnEngine:
        wanted = TurnRequest(
            trajectory_id=self._trajectory_id,
            session_id=self._session_id,
            request_id=request_id,
            turn=turn,
            context_tokens=len(tokens),
            context=lambda: tokens.context_ids,
            replacements=self._num_replacements,
        )
        with standing_still(self.deadline) if self.deadline else nullcontext():
            placed = await self._dispatcher.turn_ready(wanted)
        if self._held is not None and self._held.engine is not placed.engine:
            await self.release()
        self._held = placed
        self.placements.append(
            Placement(turn=turn, worker_id=placed.worker_id, bucket=placed.bucket)
        )
        return placed.engine
