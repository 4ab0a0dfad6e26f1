"""A worker: one process on one accelerator slot, with exactly one role at a time.

The actor itself only switches roles and passes calls on; what a role does lives in its context
(`roles`, `genrm` and `training`, beside this), which is built when the role begins and dropped when it ends. Heavy work
runs in one thread of its own, so the actor always answers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, TypeVar

import ray
import torch

from agentrl.config.run import RunConfig
from agentrl.engine.engine import EngineStats
from agentrl.engine.swap_cost import SwapCost
from agentrl.runtime.cores import Cores, stay_on
from agentrl.runtime.display import WarmupProgress
from agentrl.runtime.genrm import GenRMContext, teach
from agentrl.runtime.link import Actor
from agentrl.runtime.notice import TerminationNotice
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.replicas import Meeting, Replicas, Seat, open_meeting
from agentrl.runtime.reports import GradientShare
from agentrl.runtime.roles import RolloutContext, ServedEngine
from agentrl.runtime.trainers import StepOrder
from agentrl.runtime.training import Snapshot, TrainingContext
from agentrl.train.report import AppliedStep

Result = TypeVar("Result")


class Address(NamedTuple):
    host: str
    port: int


class Served(NamedTuple):
    """An engine that a worker has ready."""

    url: str
    version: int


class Worker:
    """Ray actor."""

    def __init__(
        self,
        config: RunConfig,
        store: Actor,
        cores: Cores,
        num_threads: int,
        gpu: int | None = None,
    ) -> None:
        """`gpu`: the only one it may use; None: those that Ray gave it."""
        if gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)  # read when CUDA is first used
        stay_on(cores)
        torch.set_num_threads(num_threads)
        self._config = config
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="role")
        self._context: ServedEngine | TrainingContext | None = None
        self._meeting: Meeting | None = None
        self._called_off = Event()
        self._notice = TerminationNotice()

    async def ready(self) -> None:
        """Returns once the process runs."""

    async def sees(self, path: Path) -> bool:
        """Whether this machine has the file."""
        return await asyncio.to_thread(path.exists)

    async def lifeline(self) -> None:
        """Never returns: the caller learns of the worker's death by the failure of this call."""
        await asyncio.Event().wait()

    async def status(self) -> list[EngineStats]:
        """Of the engine that is served here, or none; for people who look on."""
        return [await self._context.stats()] if isinstance(self._context, ServedEngine) else []

    async def notice(self) -> float:
        """Returns when the process is to be taken away: the seconds it has left.

        It ends then, whether or not somebody sees to it that it leaves well.
        """
        await self._notice.wait()
        grace_s = self._config.runtime.preemption_grace_s
        asyncio.get_running_loop().call_later(grace_s, os._exit, 0)
        return grace_s

    async def leave_role(self) -> None:
        context, self._context = self._context, None
        match context:
            case ServedEngine():
                await context.close()
            case TrainingContext():
                await self._work(context.leave_replicas)

    async def quiesce(self) -> None:
        """Return when nothing runs here any more; a training worker rests between two steps."""
        if isinstance(self._context, ServedEngine):
            await self._context.drain()

    # ------------------------------------------------------------------------------- training

    async def become_training(self, checkpoint: Path | None) -> None:
        """With the weights of the run's first moment, or those of a checkpoint."""
        await self.leave_role()
        self._context = await self._work(TrainingContext.start, self._config, checkpoint)

    async def host_meeting(self, size: int) -> Address:
        """Open a place where replicas meet."""
        host = ray.util.get_node_ip_address()
        self._meeting = open_meeting(host, size)
        return Address(host, self._meeting.port)

    async def warm_up(self, seat: Seat) -> AsyncIterator[WarmupProgress]:
        """Supervised steps; a progress a step."""
        steps = self._training.warm_up(self._replicas(seat))
        while (progress := await self._work(next, steps, None)) is not None:
            yield progress

    async def gradients(self, order: StepOrder, groups: Sequence[Any]) -> GradientShare:
        """Compute a share of a step, and add it up with those of the others.

        `groups` holds one reference, so that the groups travel from node to node and not through
        whoever calls.
        """
        if order.state:
            await self._work(self._training.take_over, await order.state[0])
        replicas = self._replicas(order.seat)
        return await self._work(self._training.gradients, await groups[0], replicas)

    async def call_off(self) -> None:
        """Wait no more for replicas that have not come: `gradients` ends with `ReplicaLost`."""
        self._called_off.set()

    async def apply(self, has_samples: bool) -> AppliedStep:
        """End the step that `gradients` began."""
        return await self._work(self._training.apply, has_samples)

    async def snapshot(self) -> Snapshot:
        return await self._work(self._training.snapshot)

    @ray.method(num_returns=2)
    async def rest(self) -> tuple[None, Snapshot]:
        """A snapshot that belongs to the caller, and a sign that it is there, which alone can be
        fetched to find that out."""
        return None, await self.snapshot()

    @ray.method(num_returns=2)
    async def weights(self) -> tuple[None, dict[str, Any]]:
        """Like `rest`: the weights alone, and a sign that they are there."""
        return None, await self._work(self._training.weights)

    async def checkpoint(self, progress: RunProgress, folder: Path) -> None:
        await self._work(self._training.save, progress, folder)

    # -------------------------------------------------------------------------------- rollout

    async def become_rollout(self, secret: str) -> Served:
        """Serve the newest weights of the store."""
        await self.leave_role()
        version, weights = await self._pull(None)
        host = ray.util.get_node_ip_address()
        context = await RolloutContext.start(self._config, secret, host, version, weights)
        self._context = context
        return Served(context.url, version)

    async def load(self, version: int) -> None:
        """Swap to these weights, by the run's policy for running turns."""
        _, weights = await self._pull(version)
        await self._rollout.load(version, weights)

    async def take_swap_cost(self) -> SwapCost | None:
        """Of the swaps since the last call; None where no policy is served any more."""
        context = self._context
        return await context.take_swap_cost() if isinstance(context, RolloutContext) else None

    # ---------------------------------------------------------------------------------- genrm

    async def teach_judge(self, folder: Path) -> AsyncIterator[WarmupProgress]:
        """Supervised steps of the judge; a progress a step. Its weights are in `folder` then."""
        steps = teach(self._config, folder)
        while (progress := await self._work(next, steps, None)) is not None:
            yield progress

    async def become_genrm(self, secret: str, folder: Path) -> Served:
        """Serve the judge's weights, which stay the same for the whole run."""
        await self.leave_role()
        host = ray.util.get_node_ip_address()
        context = await GenRMContext.start(self._config, secret, host, folder)
        self._context = context
        return Served(context.url, version=0)

    async def _pull(self, version: int | None) -> tuple[int, dict[str, Any]]:
        published = await self._store.pull.remote(version)
        return published.version, await published.refs[0]

    # ---------------------------------------------------------------------------------- parts

    def _replicas(self, seat: Seat) -> Replicas:
        """Only the first one meets the others in its own house, whatever house it had before."""
        self._called_off = Event()
        return Replicas(seat, self._meeting if seat.rank == 0 else None, self._called_off)

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
