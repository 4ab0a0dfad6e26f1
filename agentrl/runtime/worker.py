"""A worker: one process on one accelerator slot, with exactly one role at a time.

The actor itself only switches roles and passes calls on; what a role does lives in its context
(`agentrl.runtime.roles`), which is built when the role begins and dropped when it ends. Heavy work
runs in one thread of its own, so the actor always answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import ray
import torch

from agentrl.config.run import RunConfig
from agentrl.runtime.cores import stay_on
from agentrl.runtime.display import WarmupProgress
from agentrl.runtime.genrm import GenRMContext, teach
from agentrl.runtime.link import Actor
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.replicas import Meeting, Replicas, Seat, open_meeting
from agentrl.runtime.reports import TrainedStep
from agentrl.runtime.roles import RolloutContext, TrainingContext
from agentrl.types import Group

Result = TypeVar("Result")


class Address(NamedTuple):
    host: str
    port: int


class Worker:
    """Ray actor."""

    def __init__(self, config: RunConfig, store: Actor, core: int | None) -> None:
        stay_on(core)
        torch.set_num_threads(1)
        self._config = config
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="role")
        self._context: RolloutContext | GenRMContext | TrainingContext | None = None
        self._meeting: Meeting | None = None

    async def ready(self) -> None:
        """Returns once the process runs."""

    async def lifeline(self) -> None:
        """Never returns: the caller learns of the worker's death by the failure of this call."""
        await asyncio.Event().wait()

    async def leave_role(self) -> None:
        context, self._context = self._context, None
        if isinstance(context, RolloutContext | GenRMContext):
            await context.close()

    # ------------------------------------------------------------------------------- training

    async def become_training(self, checkpoint: Path | None) -> None:
        """With the weights of the run's first moment, or those of a checkpoint."""
        await self.leave_role()
        self._context = await self._work(TrainingContext.start, self._config, checkpoint)

    async def host_meeting(self, size: int) -> Address:
        """Open the place where the replicas of a warm-up meet."""
        host = ray.util.get_node_ip_address()
        self._meeting = open_meeting(host, size)
        return Address(host, self._meeting.port)

    async def warm_up(self, seat: Seat) -> AsyncIterator[WarmupProgress]:
        """Supervised steps; a progress a step."""
        steps = self._training.warm_up(Replicas(seat, self._meeting))
        while (progress := await self._work(next, steps, None)) is not None:
            yield progress

    async def train(self, groups: Sequence[Group]) -> TrainedStep:
        return await self._work(self._training.train, groups)

    async def publish(self, version: int) -> None:
        """Put the weights into the store under `version`."""
        weights = await self._work(self._training.weights)
        await self._store.publish.remote(version, [ray.put(weights)])

    async def checkpoint(self, progress: RunProgress, folder: Path) -> None:
        await self._work(self._training.save, progress, folder)

    # -------------------------------------------------------------------------------- rollout

    async def become_rollout(self, secret: str) -> str:
        """Serve the newest weights of the store; returns the address of the engine."""
        await self.leave_role()
        version, weights = await self._pull(None)
        host = ray.util.get_node_ip_address()
        context = await RolloutContext.start(self._config, secret, host, version, weights)
        self._context = context
        return context.url

    async def load(self, version: int) -> None:
        """Swap to these weights, by the run's policy for running turns."""
        _, weights = await self._pull(version)
        await self._rollout.load(version, weights)

    # ---------------------------------------------------------------------------------- genrm

    async def teach_judge(self, folder: Path) -> AsyncIterator[WarmupProgress]:
        """Supervised steps of the judge; a progress a step. Its weights are in `folder` then."""
        steps = teach(self._config, folder)
        while (progress := await self._work(next, steps, None)) is not None:
            yield progress

    async def become_genrm(self, secret: str, folder: Path) -> str:
        """Serve the judge's weights; returns the address of the engine."""
        await self.leave_role()
        host = ray.util.get_node_ip_address()
        context = await GenRMContext.start(self._config, secret, host, folder)
        self._context = context
        return context.url

    async def _pull(self, version: int | None) -> tuple[int, dict[str, Any]]:
        published = await self._store.pull.remote(version)
        return published.version, await published.refs[0]

    # ---------------------------------------------------------------------------------- parts

    @property
    def _training(self) -> TrainingContext:
        assert isinstance(self._context, TrainingContext)
        return self._context

    @property
    def _rollout(self) -> RolloutContext:
        assert isinstance(self._context, RolloutContext)
        return self._context

    async def _work(self, function: Callable[..., Result], *args: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
