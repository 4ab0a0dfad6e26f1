"""The turns of one rollout: open, sample, answer, until something ends it.

Invariants
- At every await, what was played so far is in `tokens` and in `env.turns`; whatever interrupts a
  conversation finds them whole.
- A turn cut at a limit runs none of its calls and ends the trajectory; its calls are answered
  with the reason, so that every call of every turn has exactly one result.
- Text is appended only when a turn can follow it, so a row never outgrows the context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from agentrl.chat.format import ChatFormat
from agentrl.env import Env, refuse_unfit_attributes
from agentrl.record.journal import Answer
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.chronicle import Chronicle
from agentrl.rollout.dispatch import Dispatcher
from agentrl.rollout.sampler import TurnSampler
from agentrl.rollout.text_bound import TextBound
from agentrl.rollout.tokens import TokenBuilder
from agentrl.rollout.tools import ToolRunner, result_of
from agentrl.rollout.usercode import blaming, call, call_within
from agentrl.types import Message, Outcome, StopReason, ToolCall, ToolResult, Turn


class Conversation:
    def __init__(
        self,
        *,
        env: Env,
        attempt: Attempt,
        chat: ChatFormat,
        limits: RolloutLimits,
        sampler: TurnSampler,
        tools: ToolRunner,
        dispatcher: Dispatcher,
        chronicle: Chronicle,
        bound: TextBound,
        clock: Callable[[], float],
    ) -> None:
        self.tokens = TokenBuilder()
        self.tool_seconds = chronicle.earlier_tool_seconds
        self._env = env
        self._attempt = attempt
        self._chat = chat
        self._limits = limits
        self._sampler = sampler
        self._tools = tools
        self._dispatcher = dispatcher
        self._chronicle = chronicle
        self._bound = bound
        self._clock = clock
        self._is_over = False

    async def open(self) -> bool:
        """Let the environment start; says whether its opening leaves room for a turn."""
        await open_env(self._env, timeout_s=self._limits.trajectory_timeout_s)
        self._env.opening = tuple(
            replace(message, content=self._bound.cut(message.content))
            for message in self._env.opening
        )
        with blaming(f"{type(self._env).__name__}.start"):
            ids = self._chat.render_start(self._env.opening)
        self._dispatcher.submitted(self._attempt, len(ids), self._chronicle.known_turn_tokens)
        self._chronicle.opened(ids, self._env.opening)
        if not self._limits.has_room(context=0, new=len(ids)):
            return False
        self.tokens.start(ids)
        return True

    async def run(self) -> StopReason:
        """Play to the end; says what ended it."""
        for turn in count():
            stop = self._end_before(turn)
            if stop is not None:
                self._chronicle.ending(turn)
                return stop
            cut = await self._speak(turn)
            if cut is not None:
                self.interrupt("the turn was cut at its limit, so none of its calls ran")
                if self.tokens.num_turns > turn:
                    self._chronicle.spoke(
                        turn, self.tokens, self._env.turns[-1], cut, self.tool_seconds
                    )
                return cut
            stop = await self._answer(turn)
            if stop is not None:
                return stop
        raise AssertionError("unreachable")

    def over(self, outcome: Outcome) -> None:
        """Nothing more is sampled. Told once: what is scored after this needs no worker of rollout,
        and workers may be what its judge is waiting for."""
        if not self._is_over:
            self._is_over = True
            self._dispatcher.finished(self._attempt.trajectory_id, outcome, self.tokens.num_sampled)

    @property
    def is_repeating(self) -> bool:
        """Whether what happens now has happened before, in another process."""
        return self._chronicle.is_answer_known(max(len(self._env.turns) - 1, 0))

    def interrupt(self, why: str) -> None:
        """Close a turn that was cut off while it was sampled or while its calls ran."""
        turns = self._env.turns
        if self.tokens.num_turns > len(turns):
            said = self._chat.parse(self.tokens.turn_ids)
            calls = tuple(replace(call, error=call.error or why) for call in said.calls)
            turns.append(Turn(said.text, calls, said.reasoning, is_truncated=True))
        if turns and not turns[-1].results:
            results = tuple(result_of(call, call.error or why, "error") for call in turns[-1].calls)
            turns[-1] = replace(turns[-1], results=results)

    async def _speak(self, turn: int) -> StopReason | None:
        """The policy's part of a turn; says which limit cut it, if one did."""
        known = self._chronicle.known(turn)
        if known is not None:
            self.tokens.sampled(known.ids, known.logprobs, known.policy_versions)
            return known.cut
        cut = await self._sampler.sample(self.tokens, turn)
        if self.tokens.num_turns > turn:
            self._dispatcher.turn_finished(
                self._attempt.trajectory_id,
                turn,
                num_tokens=len(self.tokens.turn_ids),
                context_tokens=len(self.tokens),
            )
        return cut

    def _end_before(self, turn: int) -> StopReason | None:
        if self._env.ledger.is_finished:
            return StopReason.DONE
        max_turns = self._limits.max_turns or self._env.max_turns
        return StopReason.MAX_TURNS if turn >= max_turns else None

    async def _answer(self, turn: int) -> StopReason | None:
        """Answer a whole turn; says why no other one follows, if none does."""
        said = self._chat.parse(self.tokens.turn_ids)
        played = Turn(said.text, said.calls, said.reasoning)
        self._env.turns.append(played)
        self._chronicle.spoke(turn, self.tokens, played, None, self.tool_seconds)
        if said.calls:
            answer = Answer(results=await self._run_calls(said.calls, turn))
            append = self.tokens.tool
        else:
            reply = await reply_of(self._env, played)
            if reply is None:
                self._chronicle.ending(turn + 1)
                return StopReason.DONE
            answer, append = Answer(reply=self._bound.cut(reply)), self.tokens.reply
        stop = self._end_before(turn + 1)
        ids = [] if stop else self._fitting_ids(answer)
        if stop is None and not ids:
            stop = StopReason.CONTEXT_FULL
        answer = self._chronicle.answered(turn, replace(answer, ids=ids), self.tool_seconds)
        self._env.turns[-1] = replace(played, results=answer.results, reply=answer.reply)
        if stop is None:
            self.tokens.scaffold(self._chat.scaffold_ids)
            append(ids[len(self._chat.scaffold_ids) :])
        return stop

    def _fitting_ids(self, answer: Answer) -> list[int]:
        """What an answer adds to the context; nothing, where that leaves no room for a turn."""
        texts = [result.text for result in answer.results]
        if not self._bound.may_fit([*texts, answer.reply or ""]):
            return []
        if answer.reply is None:
            said = self._chat.render_results(answer.results)
        else:
            said = self._chat.render_reply(answer.reply)
        ids = [*self._chat.scaffold_ids, *said]
        return ids if self._limits.has_room(context=len(self.tokens), new=len(ids)) else []

    async def _run_calls(self, calls: tuple[ToolCall, ...], turn: int) -> tuple[ToolResult, ...]:
        begun = self._clock()
        try:
            return await self._tools.run(
                self._env, calls, trajectory_id=self._attempt.trajectory_id, turn=turn
            )
        finally:
            self.tool_seconds += self._clock() - begun


async def open_env(env: Env, *, timeout_s: float) -> None:
    """Let an environment start, and note what opens its conversation."""
    said: str | list[Message] = await call_within(timeout_s, env.start)
    with blaming(f"{type(env).__name__}.start"):
        opening = [Message("user", said)] if isinstance(said, str) else said
        if not isinstance(opening, list | tuple) or not all(
            isinstance(m, Message) and isinstance(m.content, str) for m in opening
        ):
            raise TypeError(f"start() returned {said!r}; wanted a text or a list of Message")
        refuse_unfit_attributes(env, type(env).__name__)
        system = [] if env.system is None else [Message("system", env.system)]
        env.opening = (*system, *opening)


async def reply_of(env: Env, turn: Turn) -> str | None:
    reply: str | None = await call(env.reply, turn)
    with blaming(f"{type(env).__name__}.reply"):
        if not isinstance(reply, str | None):
            raise TypeError(f"reply() returned {reply!r}; wanted a text or None")
    return reply
