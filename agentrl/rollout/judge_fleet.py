"""A judge that is a worker of the run's own fleet.

A request is a trajectory of one turn: it is placed by the scheduler, streams its tokens back, and
keeps them when its worker dies. While no worker can serve it, it waits and asks again, until the
deadline of whoever asked ends that.
"""

from __future__ import annotations

import asyncio
from itertools import count

import structlog

from agentrl.chat.format import ChatFormat
from agentrl.engine.engine import EngineError, Sampling
from agentrl.env import seed_of
from agentrl.judging import NoVerdict
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.dispatch import Dispatcher
from agentrl.rollout.judge import Answer, Ask
from agentrl.rollout.sampler import TurnSampler
from agentrl.rollout.text_bound import TextBound
from agentrl.rollout.tokens import TokenBuilder
from agentrl.types import Outcome

log = structlog.get_logger(__name__)

RETRY_S = 0.5
MAX_RETRY_S = 8.0


class FleetJudge:
    """Implements `JudgeModel` over a dispatcher."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        chat: ChatFormat,
        max_tokens: int,
        context_tokens: int,
        temperature: float,
    ) -> None:
        """`max_tokens` of one answer; `context_tokens` of question and answer together."""
        self._dispatcher = dispatcher
        self._chat = chat
        self._sampling = Sampling(temperature=temperature, stop_ids=chat.stop_ids)
        self._limits = RolloutLimits(
            max_turn_tokens=max_tokens,
            max_trajectory_tokens=max_tokens,
            context_tokens=context_tokens,
        )
        self._bound = TextBound.of(chat, context_tokens)

    async def answer(self, ask: Ask) -> Answer:
        num_chars = sum(len(message.content) for message in ask.messages)
        if num_chars > self._bound.max_chars:
            raise NoVerdict(
                f"the question has {num_chars} characters, and judge.context_tokens is "
                f"{self._limits.context_tokens}"
            )
        prompt = self._chat.render_start(ask.messages)
        if not self._limits.has_room(context=0, new=len(prompt)):
            raise NoVerdict(
                f"the question has {len(prompt)} tokens, and judge.context_tokens is "
                f"{self._limits.context_tokens}"
            )
        tokens = TokenBuilder()
        tokens.start(prompt)
        pause_s = RETRY_S
        for number in count():
            try:
                return await self._sample(ask, tokens, f"{ask.ask_id}.{number}")
            except EngineError as error:
                log.warning(
                    "a judge's worker failed; asking again", ask=ask.ask_id, error=str(error)
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RETRY_S)
        raise AssertionError("unreachable")

    async def _sample(self, ask: Ask, tokens: TokenBuilder, request_id: str) -> Answer:
        sampler = TurnSampler(
            trajectory_id=request_id,
            session_id=request_id,
            dispatcher=self._dispatcher,
            limits=self._limits,
            sampling=self._sampling,
            seed=lambda turn, sampled: seed_of(ask.seed, sampled),
        )
        self._dispatcher.asked(request_id, f"judge/{ask.group_id}", len(tokens))
        outcome = Outcome.CANCELLED
        try:
            await sampler.sample(tokens, 0)
            self._dispatcher.turn_finished(
                request_id, 0, num_tokens=tokens.num_sampled, context_tokens=len(tokens)
            )
            outcome = Outcome.FINISHED
        except EngineError:
            outcome = Outcome.INFRA_ERROR
            raise
        finally:
            await sampler.release()
            self._dispatcher.finished(request_id, outcome, tokens.num_sampled)
        said = self._chat.parse(tokens.turn_ids)
        return Answer(
            text=said.text,
            reasoning=said.reasoning,
            served_by=sampler.placements[-1].worker_id if sampler.placements else "",
            num_tokens=tokens.num_sampled,
        )
