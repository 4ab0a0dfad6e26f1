"""The trail environment as TRL wants it: `reset`, tools as methods, a reward function.

It is a thin shell around the real `envs/trail.py`: tasks, turn limit, tools, boxes and scoring are
agentrl's own. TRL calls tools one trajectory after the other and waits for each, so the shell does
what TRL cannot: boxes are made ahead, beside the rest, and closed without waiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from agentrl.config.sections import SandboxSection
from agentrl.env import Env
from agentrl.rollout.scoring import score
from agentrl.runtime.boxes import first_spec, open_pool
from agentrl.types import Task, ToolCall, Turn
from sandboxes import Sandbox, SandboxPool

Result = TypeVar("Result")
SCORE_TIMEOUT_S = 60.0


class World:
    """The tasks, the boxes, and the event loop in a thread of its own on which boxes live."""

    def __init__(
        self,
        env_class: type[Env],
        tasks: Mapping[str, Task],
        sandbox: SandboxSection,
        end_text: str,
    ) -> None:
        """`end_text` is too long for any trajectory: given as a tool's result, TRL ends it."""
        self.env_class = env_class
        self.tasks = tasks
        self.end_text = end_text
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="boxes", daemon=True).start()
        self._closing = AsyncExitStack()
        self.pool = self.run(self._open(sandbox))

    async def _open(self, sandbox: SandboxSection) -> SandboxPool:
        """As agentrl's own runner does it."""
        opened = open_pool(sandbox, self.env_class, run_id="vs-trl")
        pool, spec = await self._closing.enter_async_context(opened), first_spec(self.env_class)
        assert pool is not None
        assert spec is not None
        pool.prewarm([spec] * sandbox.pool_size)
        return pool

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.begin(work).result()

    def begin(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def box_for(self, task: Task) -> Future[Sandbox]:
        spec = self.env_class.sandbox_for(task)
        assert spec is not None
        return self.begin(self.pool.acquire(spec))

    def close(self) -> None:
        self.run(self._closing.aclose())


class TrailWorld:
    """What TRL makes one of for each trajectory of a batch, and resets for the next batch.

    Every public method but `reset` is a tool to TRL.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._box: Future[Sandbox] | None = None

    def reset(self, task_id: str, **_: object) -> str:
        task = self._world.tasks[task_id]
        self._env = self._world.env_class(task)
        self._box = self._world.box_for(task)
        opening = self._world.run(self._env.start())
        assert isinstance(opening, str)
        return opening

    def sh(self, text: str) -> str:
        """Run a shell command in the folder of the files.

        Args:
            text: The command.
        """
        return self._play("sh", "cmd", text)

    def calc(self, text: str) -> str:
        """Add numbers.

        Args:
            text: A sum, such as 17+25.
        """
        return self._play("calc", "sum", text)

    def _play(self, name: str, parameter: str, text: str) -> str:
        env, box = self._env, self._box
        assert box is not None
        env.box = box.result()
        env.turns.append(Turn(calls=(ToolCall(name, {parameter: text}),)))
        result: str = self._world.run(getattr(env, name)(**{parameter: text}))
        return self._world.end_text if len(env.turns) >= env.max_turns else result

    async def _score(self, last: Mapping[str, Any]) -> float:
        """The environment's own reward. The box is given back; nobody waits for its deletion."""
        assert self._box is not None
        self._world.pool.release(await asyncio.wrap_future(self._box))
        if not last.get("tool_calls"):
            self._env.turns.append(Turn(last["content"]))
        reward = (await score(self._env, timeout_s=SCORE_TIMEOUT_S)).reward
        assert reward is not None
        return reward


def reward_of(
    completions: Sequence[Sequence[Mapping[str, Any]]],
    environments: Sequence[TrailWorld],
    **_: object,
) -> list[float]:
    """TRL's reward function: all trajectories of the batch at once."""

    async def score_all() -> list[float]:
        pairs = zip(completions, environments, strict=True)
        return await asyncio.gather(*(env._score(said[-1]) for said, env in pairs))

    return environments[0]._world.run(score_all())
