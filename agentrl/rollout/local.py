"""Rollouts in one process: no scheduler, and a policy that is an engine or a list of turns.

`agentrl env check`, `env demo` and `env play` use it, with the real environment, real tools and
real boxes; only the policy is replaced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count

from agentrl.chat.format import ChatFormat
from agentrl.engine.engine import FinishReason, GenerateRequest, Sampling, TokenChunk
from agentrl.env import Env
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.dispatch import Placed, SandboxSource, TurnEngine, TurnRequest
from agentrl.rollout.judge import JudgeRole
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.usercode import call
from agentrl.types import Outcome, Task, ToolCall, ToolResult, Trajectory, Turn

Script = Callable[[Env], Iterable[Turn]]
"""Turns to play; each is asked for when the answers to the one before are in `env.turns`."""


class LocalDispatcher:
    """Every turn goes to the one engine. There is nobody to notify."""

    def __init__(self, engine: TurnEngine) -> None:
        self._placed = Placed("local", "local", engine)

    def submitted(
        self, attempt: Attempt, prompt_tokens: int, turn_tokens: Sequence[int] = ()
    ) -> None: ...
    def asked(self, ask_id: str, group_id: str, prompt_tokens: int) -> None: ...

    async def turn_ready(self, request: TurnRequest) -> Placed:
        return self._placed

    def progress(self, trajectory_id: str, turn: int, num_tokens: int) -> None: ...
    def turn_finished(
        self, trajectory_id: str, turn: int, *, num_tokens: int, context_tokens: int
    ) -> None: ...
    def tool_started(self, trajectory_id: str, turn: int, call: ToolCall) -> None: ...
    def tool_returned(
        self, trajectory_id: str, turn: int, call: ToolCall, result: ToolResult
    ) -> None: ...
    def finished(self, trajectory_id: str, outcome: Outcome, num_tokens: int) -> None: ...


class ScriptedEngine:
    """Says the turns of a script, rendered as a model would have sampled them.

    A session whose script has ended, or that has none, says nothing: it ends each turn at once.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._scripts: dict[str, Iterator[Turn]] = {}

    def follow(self, session_id: str, turns: Iterator[Turn]) -> None:
        self._scripts[session_id] = turns

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        turns = self._scripts.get(request.session_id, iter(()))

        def next_turn() -> Turn:
            return next(turns, Turn())

        turn: Turn = await call(next_turn)
        ids = self._chat.render_assistant(turn)
        said = ids[: request.max_new_tokens]
        yield TokenChunk(
            ids=said,
            logprobs=[0.0] * len(said),
            policy_versions=[0] * len(said),
            finish_reason=FinishReason.STOP if len(said) == len(ids) else FinishReason.LENGTH,
        )

    async def release(self, session_id: str) -> None:
        self._scripts.pop(session_id, None)


class ScriptedRollouts:
    """Plays scripts through an environment as if a model had said their turns."""

    def __init__(
        self,
        env_class: type[Env],
        chat: ChatFormat,
        limits: RolloutLimits,
        *,
        sandboxes: SandboxSource | None = None,
        roles: Mapping[str, JudgeRole] | None = None,
        run_seed: int = 0,
    ) -> None:
        self._engine = ScriptedEngine(chat)
        self._numbers = count()
        self._runner = RolloutRunner(
            env_class=env_class,
            chat=chat,
            limits=limits,
            sampling=Sampling(),
            dispatcher=LocalDispatcher(self._engine),
            sandboxes=sandboxes,
            roles=roles,
            run_seed=run_seed,
        )

    async def play(
        self, task: Task, script: Script, *, sibling: int = 0, split: str = "train"
    ) -> Trajectory:
        attempt = Attempt(
            trajectory_id=f"{split}/{task.id}/{next(self._numbers)}",
            task=task,
            group_id=f"{split}/{task.id}",
            sibling=sibling,
            split=split,
        )
        env = self._runner.make_env(attempt)
        self._engine.follow(attempt.trajectory_id, _lazily(env, script))
        return await self._runner.play(attempt, env)


def _lazily(env: Env, script: Script) -> Iterator[Turn]:
    """The script begins when its first turn is asked for, which is after `start()`."""
    yield from script(env)
