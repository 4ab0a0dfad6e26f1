"""One rollout's life: a box, a conversation, a score, and always a `Trajectory`.

A bad rollout is data: whatever the environment, its box or an engine do wrong becomes an outcome
with the error's text. Only what agentrl itself does wrong is raised.

Invariants
- The box is given back and the engine has let go of the session, in every ending.
- Cancellation is passed on after that, and the dispatcher hears of it.
- An error of the infrastructure has no reward.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from agentrl.chat.format import ChatFormat
from agentrl.engine.engine import Sampling
from agentrl.env import Env, in_epoch, seed_of
from agentrl.judging import JudgeLost, Roles
from agentrl.record.journal import JournaledAttempt
from agentrl.record.journal_writer import JournalWriter
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.chronicle import Chronicle, Diverged
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.dispatch import Dispatcher, SandboxSource
from agentrl.rollout.judge import Asker, JudgeRole
from agentrl.rollout.sampler import TurnSampler
from agentrl.rollout.scoring import score
from agentrl.rollout.text_bound import TextBound
from agentrl.rollout.tools import ToolRunner
from agentrl.rollout.usercode import INFRASTRUCTURE, UserCodeError, blaming, call_within
from agentrl.types import Entry, Outcome, RewardPart, StopReason, Trajectory, Turn

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    stop_reason: StopReason
    outcome: Outcome
    reward: float | None = None
    parts: tuple[RewardPart, ...] = ()
    entries: tuple[Entry, ...] = ()
    error: str | None = None


class RolloutRunner:
    """Plays attempts at one environment's tasks; `run` may be called many times at once."""

    def __init__(
        self,
        *,
        env_class: type[Env],
        chat: ChatFormat,
        limits: RolloutLimits,
        sampling: Sampling,
        dispatcher: Dispatcher,
        sandboxes: SandboxSource | None = None,
        roles: Mapping[str, JudgeRole] | None = None,
        journal: JournalWriter | None = None,
        run_seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`sandboxes` may be None for environments without a box. Without a `journal` what is
        played is nowhere written down before it ends."""
        self._env_class = env_class
        self._chat = chat
        self._limits = limits
        self._sampling = replace(sampling, stop_ids=chat.stop_ids)
        self._dispatcher = dispatcher
        self._sandboxes = sandboxes
        self._roles = roles or {}
        self._journal = journal
        self._run_seed = run_seed
        self._clock = clock
        self._wall_clock = wall_clock
        self._bound = TextBound.of(chat, limits.context_tokens)
        self._tools = ToolRunner(
            env_class.definition().tools,
            timeout_s=limits.tool_timeout_s,
            dispatcher=dispatcher,
            bound=self._bound,
            clock=clock,
        )

    async def run(self, attempt: Attempt, past: JournaledAttempt | None = None) -> Trajectory:
        """Play an attempt; go on from its `past`, where that comes about again as it was."""
        diverged = None
        if past is not None:
            try:
                env = self.make_env(attempt, past.continued + 1)
                return await self.play(attempt, env, past)
            except Diverged as difference:
                diverged = str(difference)
                log.warning(
                    "an attempt cannot go on and starts anew",
                    trajectory=attempt.trajectory_id,
                    why=diverged,
                )
        return await self.play(attempt, self.make_env(attempt), diverged=diverged)

    def make_env(self, attempt: Attempt, continued: int = 0) -> Env:
        env = self._env_class(
            attempt.task,
            run_seed=self._run_seed,
            sibling=attempt.sibling,
            attempt=attempt.attempt,
            epoch=attempt.epoch,
        )
        asker = Asker(
            trajectory_id=_session_id(attempt, continued),
            group_id=attempt.group_id,
            seed=seed_of(*self._seed_parts(attempt)),
            ledger=env.ledger,
        )
        env.roles = Roles({name: role.of(asker) for name, role in self._roles.items()})
        return env

    async def play(
        self,
        attempt: Attempt,
        env: Env,
        past: JournaledAttempt | None = None,
        *,
        diverged: str | None = None,
    ) -> Trajectory:
        """Raises `Diverged` when something is not as it was in `past`."""
        chronicle = Chronicle(
            attempt,
            journal=self._journal,
            past=past,
            clock=self._clock,
            started_s=self._wall_clock(),
        )
        sampler = self._sampler(attempt, chronicle.continued)
        conversation = Conversation(
            env=env,
            attempt=attempt,
            chat=self._chat,
            limits=self._limits,
            sampler=sampler,
            tools=self._tools,
            dispatcher=self._dispatcher,
            chronicle=chronicle,
            bound=self._bound,
            clock=self._clock,
        )
        outcome = Outcome.CANCELLED
        try:
            ending = await self._end(env, conversation, sampler)
            outcome = ending.outcome
        finally:
            conversation.over(outcome)
        trajectory = Trajectory(
            trajectory_id=attempt.trajectory_id,
            task_id=attempt.task.id,
            group_id=attempt.group_id,
            sibling=attempt.sibling,
            attempt=attempt.attempt,
            split=attempt.split,
            rows=conversation.tokens.rows(),
            turns=_with_credit(env),
            messages=env.opening,
            reward=ending.reward,
            reward_parts=ending.parts,
            judgements=tuple(env.ledger.judgements),
            entries=ending.entries,
            metrics=dict(env.ledger.metrics),
            stop_reason=ending.stop_reason,
            outcome=ending.outcome,
            error=ending.error,
            placements=tuple(sampler.placements),
            seed=seed_of(*self._seed_parts(attempt)),
            started_s=chronicle.started_s,
            seconds=chronicle.seconds,
            tool_seconds=conversation.tool_seconds,
            continued=chronicle.continued,
            diverged=diverged,
        )
        chronicle.ended(trajectory)
        return trajectory

    def _sampler(self, attempt: Attempt, continued: int) -> TurnSampler:
        seed_parts = self._seed_parts(attempt)
        return TurnSampler(
            trajectory_id=attempt.trajectory_id,
            session_id=_session_id(attempt, continued),
            dispatcher=self._dispatcher,
            limits=self._limits,
            sampling=self._sampling,
            seed=lambda turn, tokens: seed_of(*seed_parts, turn, tokens),
        )

    def _seed_parts(self, attempt: Attempt) -> tuple[int | str, ...]:
        """The same ones in every evaluation, which makes these comparable."""
        task_id, sibling, number = attempt.task.id, attempt.sibling, attempt.attempt
        return in_epoch(attempt.epoch, self._run_seed, attempt.split, task_id, sibling, number)

    async def _end(self, env: Env, conversation: Conversation, sampler: TurnSampler) -> _Ending:
        """Live through the rollout, and say how it ended."""
        try:
            async with self._box_of(env):
                try:
                    stop = await self._converse(env, conversation, sampler)
                    conversation.over(Outcome.FINISHED)
                    scored = await score(env, timeout_s=self._limits.trajectory_timeout_s)
                finally:
                    await self._close(env)
        except UserCodeError as error:
            if conversation.is_repeating:
                raise Diverged(f"{error.args[0]} raised {error.__cause__!r}") from error
            conversation.interrupt("the environment failed")
            return _Ending(
                stop_reason=StopReason.ENV_ERROR, outcome=Outcome.ENV_ERROR, error=str(error)
            )
        except INFRASTRUCTURE as error:
            conversation.interrupt("the infrastructure failed")
            return _Ending(
                stop_reason=StopReason.INFRA_ERROR,
                outcome=Outcome.INFRA_ERROR,
                error="".join(traceback.format_exception(error)),
            )
        if scored.unscored:
            outcome, error_text = Outcome.UNSCORED, f"unscored: {scored.unscored}"
        else:
            outcome = Outcome.TRUNCATED if stop.is_truncated else Outcome.FINISHED
            error_text = None
        return _Ending(
            stop_reason=stop,
            outcome=outcome,
            reward=scored.reward,
            parts=scored.parts,
            entries=scored.entries if scored.unscored is None else (),
            error=error_text,
        )

    async def _converse(
        self, env: Env, conversation: Conversation, sampler: TurnSampler
    ) -> StopReason:
        if not await conversation.open():
            return StopReason.CONTEXT_FULL
        timeout_s = self._limits.trajectory_timeout_s
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                sampler.deadline = deadline
                return await conversation.run()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            if env.ledger.num_unanswered:
                raise JudgeLost(f"a judge still had not answered after {timeout_s:g} s") from error
            if conversation.is_repeating:
                raise Diverged(f"its calls took more than {timeout_s:g} s this time") from error
            conversation.interrupt("the time of the attempt was up")
            return StopReason.WALL_CLOCK
        finally:
            await sampler.release()

    @asynccontextmanager
    async def _box_of(self, env: Env) -> AsyncIterator[None]:
        asked_by = f"{type(env).__name__}.sandbox_for"
        with blaming(asked_by):
            spec = env.sandbox_for(env.task)
        if spec is None:
            yield
            return
        assert self._sandboxes is not None, "this environment needs boxes"
        async with AsyncExitStack() as leased:
            # Files that do not fit or may not be there are the fault of who asks for them.
            with blaming(asked_by):
                env.box = await leased.enter_async_context(self._sandboxes.lease(spec))
            yield

    async def _close(self, env: Env) -> None:
        """An environment that cannot close is reported; what it played stands."""
        try:
            await call_within(self._limits.tool_timeout_s, env.close)
        except (UserCodeError, *INFRASTRUCTURE) as error:
            log.warning("an environment did not close", task=env.task.id, error=str(error))


def _session_id(attempt: Attempt, continued: int) -> str:
    """Another one in every process that plays it: a lost one may not be forgotten everywhere yet."""
    return f"{attempt.trajectory_id}~{continued}" if continued else attempt.trajectory_id


def _with_credit(env: Env) -> tuple[Turn, ...]:
    earned = [0.0] * len(env.turns)
    for credit in env.ledger.credits:
        if credit.turn < len(earned):
            earned[credit.turn] += credit.value
    return tuple(replace(turn, reward=r) for turn, r in zip(env.turns, earned, strict=True))
