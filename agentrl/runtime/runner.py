"""A runner: one process that holds many attempts as asyncio tasks, with their boxes.

It is told where engines are and which attempts to make; finished trajectories are fetched from it
by a long poll. Placement is the coordinator's: every turn asks for it over the runner's link.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NoReturn

import ray

from agentrl.chat.make import make_chat
from agentrl.config.run import RunConfig
from agentrl.engine.engine import Sampling
from agentrl.judging import JUDGE
from agentrl.models.backend import load_backend
from agentrl.record.journal import JournaledAttempt
from agentrl.record.journal_writer import JournalWriter
from agentrl.registry import EnvRef
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.contests import decide
from agentrl.rollout.runner import RolloutRunner
from agentrl.runtime.boxes import first_spec, open_pool, try_out
from agentrl.runtime.connections import Connections
from agentrl.runtime.dispatch import CoordinatedDispatcher, EngineAddress
from agentrl.runtime.judges import open_roles
from agentrl.runtime.link import CoordinatorAddress, CoordinatorLink
from agentrl.runtime.process_logs import LoggingActor
from agentrl.runtime.progress import Standing, is_spent
from agentrl.runtime.status import NUM_OLDEST, RunnerStatus
from agentrl.types import Group, Trajectory
from sandboxes.pool import SandboxPool
from scheduler.decisions import Decision

POLL_S = 10.0
FLUSH_EVERY_S = 0.5


class Runner(LoggingActor):
    """Ray actor. Its driver polls `ended`; the failure of that call is the runner's death."""

    def __init__(
        self,
        config: RunConfig,
        env: EnvRef,
        name: str,
        coordinator: CoordinatorAddress,
        secret: str,
        journal: JournalWriter,
    ) -> None:
        self._config = config
        self._journal = journal
        self._env = env
        self._name = name
        self._link = CoordinatorLink(coordinator, name, self._on_decision)
        self._connections = Connections(secret)
        self._dispatcher = CoordinatedDispatcher(self._link.tell, self._connections.reach)
        self._running: dict[str, tuple[asyncio.Task[None], float]] = {}
        self._ended: list[Trajectory] = []
        self._news = asyncio.Event()
        self._pool: SandboxPool | None = None

    async def ready(self) -> None:
        """Load the environment, and start listening to the coordinator."""
        config = self._config
        self._env_class = env_class = self._env.load()
        self._closing = AsyncExitStack()
        self._pool = pool = await self._closing.enter_async_context(
            open_pool(config.sandbox, env_class, run_id=config.name)
        )
        self._roles = await open_roles(config, self._dispatcher, self._closing)
        self._rollouts = RolloutRunner(
            env_class=env_class,
            chat=make_chat(
                config.chat,
                load_backend(config.model),
                env_class.definition().schemas,
            ),
            limits=RolloutLimits.of(config.rollout),
            sampling=Sampling(
                temperature=config.rollout.temperature,
                top_p=config.rollout.top_p,
                top_k=config.rollout.top_k,
            ),
            dispatcher=self._dispatcher,
            sandboxes=pool,
            roles=self._roles,
            journal=self._journal,
            run_seed=config.seed,
        )
        self._seats = asyncio.Semaphore(config.rollout.max_running)
        self._broken = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._link.run())
        self._connecting = asyncio.create_task(self._connections.run())
        self._flushing = asyncio.create_task(self._flush())

    async def make_boxes(self) -> None:
        """The first ones, which may have to wait for their image to be pulled."""
        spec = first_spec(self._env_class)
        if self._pool is not None and spec is not None:
            await try_out(self._pool, spec)
            self._pool.prewarm([spec] * self._config.sandbox.pool_size)

    async def node_id(self) -> str:
        """Ray's name of the machine it is on."""
        node_id: str = ray.get_runtime_context().get_node_id()
        return node_id

    async def connect(self, address: EngineAddress) -> None:
        """Turns may be placed on this worker, under this generation, from now on."""
        await self._connections.connect(address)

    async def submit(self, attempts: Sequence[tuple[Attempt, JournaledAttempt | None]]) -> None:
        """Each with its past, where it has one in a process that was lost."""
        for attempt, past in attempts:
            task = asyncio.create_task(self._attempt(attempt, past), name=attempt.trajectory_id)
            task.add_done_callback(self._notice_failure)
            self._running[attempt.trajectory_id] = (task, time.monotonic())

    async def ended(self) -> list[Trajectory]:
        """Trajectories that have ended since the last call; empty when none did for a while.

        Raises what agentrl itself did wrong here, and what ended the link to the coordinator.
        """
        news = asyncio.create_task(self._news.wait())
        waits = {news, self._listening, self._connecting, self._broken}
        done, _ = await asyncio.wait(waits, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        for failed in done - {news}:
            failed.result()
        self._news.clear()
        ended, self._ended = self._ended, []
        return ended

    async def settle(self, checkpoint: Standing, now: Standing) -> int:
        """Forget what training is done with. Returns how many lines could not be written so far."""
        self._journal.forget(lambda kept: is_spent(kept, checkpoint=checkpoint, now=now))
        return self._journal.num_failed

    async def decide(self, group: Group) -> Group:
        """Let the judge compare the members of a group that has ended."""
        return await decide(group, self._roles[JUDGE])

    async def status(self) -> RunnerStatus:
        """For people who look on."""
        now = time.monotonic()
        oldest = sorted(self._running.items(), key=lambda item: item[1][1])[:NUM_OLDEST]
        return RunnerStatus(
            num_attempts=len(self._running),
            oldest=[(trajectory_id, now - since) for trajectory_id, (_, since) in oldest],
            boxes=None if self._pool is None else self._pool.metrics(),
        )

    async def close(self) -> None:
        """Cancel what runs, delete the boxes and let go of the engines."""
        tasks = [task for task, _ in self._running.values()]
        tasks += [self._listening, self._connecting, self._flushing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._journal.close()
        await self._closing.aclose()
        await self._connections.close()

    def _notice_failure(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._broken.done():
            self._broken.set_exception(error)

    def _on_decision(self, decision: Decision) -> None:
        self._dispatcher.on_decision(decision)

    async def _flush(self) -> NoReturn:
        """What was answered is seen by those who look on, however long the next turn takes."""
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            self._journal.flush()

    async def _attempt(self, attempt: Attempt, past: JournaledAttempt | None) -> None:
        try:
            async with self._seats:
                trajectory = await self._rollouts.run(attempt, past)
        finally:
            del self._running[attempt.trajectory_id]
        self._ended.append(trajectory)
        self._news.set()
