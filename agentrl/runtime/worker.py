"""A worker: one process on one accelerator slot, with exactly one role at a time.

The actor itself only switches roles and passes calls on; what a role does lives in its context
(`roles`, `genrm` and `training`, beside this), which is built when the role begins and dropped when
it ends. Heavy work runs in one thread of its own, so the actor always answers.

What contexts need is imported by the process itself, never with this module: whoever starts workers
needs none of it, and torch alone takes seconds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from threading import Event
from traceback import format_exception
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import ray

from agentrl.config.run import RunConfig
from agentrl.engine.engine import EngineError, EngineStats
from agentrl.engine.swap_cost import SwapCost
from agentrl.registry import EnvRef
from agentrl.runtime.cores import Cores, stay_on
from agentrl.runtime.display import WarmupProgress
from agentrl.runtime.link import Actor
from agentrl.runtime.membership import Membership
from agentrl.runtime.notice import TerminationNotice
from agentrl.runtime.process_logs import LoggingActor
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.reports import GradientShare
from agentrl.runtime.trainers import StepOrder
from agentrl.train.report import AppliedStep

if TYPE_CHECKING:
    from agentrl.runtime.genrm import GenRMContext
    from agentrl.runtime.replicas import Meeting, Replicas
    from agentrl.runtime.roles import RolloutContext, ServedEngine
    from agentrl.runtime.training import Snapshot, TrainingContext

Result = TypeVar("Result")


class Address(NamedTuple):
    host: str
    port: int


class Served(NamedTuple):
    """An engine that a worker has ready."""

    url: str
    version: int


class Worker(LoggingActor):
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
        for role in ("roles", "genrm", "training"):  # while nobody waits for an answer
            import_module(f"agentrl.runtime.{role}")
        import torch

        torch.set_num_threads(num_threads)
        self._config = config
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="role")
        self._rollout: RolloutContext | None = None
        self._genrm: GenRMContext | None = None
        self._training: TrainingContext | None = None
        self._meeting: Meeting | None = None
        self._broken: asyncio.Queue[EngineError] = asyncio.Queue()
        self._called_off = Event()
        self._round = self._called_off_round = 0
        self._notice = TerminationNotice()

    async def ready(self) -> None:
        """Returns once the process runs."""

    async def node_id(self) -> str:
        """Ray's name of the machine it is on."""
        node_id: str = ray.get_runtime_context().get_node_id()
        return node_id

    async def sees(self, path: Path) -> bool:
        """Whether this machine has the file."""
        return await asyncio.to_thread(path.exists)

    async def lifeline(self) -> None:
        """Never returns: the caller learns of the worker's death by the failure of this call."""
        await asyncio.Event().wait()

    async def broken(self) -> str:
        """Returns when an engine that was served here has broken, with its traceback: such a
        process can do no more than end."""
        return "".join(format_exception(await self._broken.get()))

    async def status(self) -> list[EngineStats]:
        """Of the engine that is served here, or none; for people who look on."""
        return [await self._served.stats()] if self._served else []

    async def notice(self) -> float:
        """Returns when the process is to be taken away: the seconds it has left.

        It ends then, whether or not somebody sees to it that it leaves well.
        """
        await self._notice.wait()
        grace_s = self._config.runtime.preemption_grace_s
        asyncio.get_running_loop().call_later(grace_s, os._exit, 0)
        return grace_s

    async def leave_role(self) -> None:
        served, training = self._served, self._training
        self._rollout = self._genrm = self._training = None
        if served:
            await served.close()
        if training:
            await self._work(training.leave_replicas)

    async def quiesce(self) -> None:
        """Return when nothing runs here any more; a training worker rests between two steps."""
        if self._served:
            await self._served.drain()

    # ------------------------------------------------------------------------------- training

    async def become_training(self, checkpoint: Path | None) -> None:
        """With the weights of the run's first moment, or those of a checkpoint."""
        from agentrl.runtime.training import TrainingContext

        await self.leave_role()
        self._training = await self._work(TrainingContext.start, self._config, checkpoint)

    async def host_meeting(self, size: int) -> Address:
        """Open a place where replicas meet."""
        from agentrl.runtime.replicas import open_meeting

        host = ray.util.get_node_ip_address()
        self._meeting = open_meeting(host, size)
        return Address(host, self._meeting.port)

    async def warm_up(self, membership: Membership, env: EnvRef) -> AsyncIterator[WarmupProgress]:
        """Supervised steps on what the environment shows; a progress a step."""
        steps = self._trained.warm_up(self._replicas(membership), env)
        while (progress := await self._work(next, steps, None)) is not None:
            yield progress

    async def gradients(self, order: StepOrder, groups: Sequence[Any]) -> GradientShare:
        """Compute a share of a step, and add it up with those of the others.

        `groups` holds one reference, so that the groups travel from node to node and not through
        whoever calls.
        """
        self._round = order.round
        replicas = self._replicas(order.membership)
        if order.round <= self._called_off_round:
            self._called_off.set()
        if order.state:
            await self._work(self._trained.take_over, await order.state[0])
        return await self._work(self._trained.gradients, await groups[0], replicas)

    async def call_off(self, round_number: int) -> None:
        """Wait no more for replicas that have not come: the `gradients` of this round end with
        `ReplicaLost`, though they may begin here after this call."""
        self._called_off_round = round_number
        if self._round == round_number:
            self._called_off.set()

    async def apply(self, has_samples: bool) -> AppliedStep:
        """End the step that `gradients` began."""
        return await self._work(self._trained.apply, has_samples)

    async def snapshot(self) -> Snapshot:
        return await self._work(self._trained.snapshot)

    @ray.method(num_returns=2)
    async def rest(self) -> tuple[None, Snapshot]:
        """A snapshot that belongs to the caller, and a sign that it is there, which alone can be
        fetched to find that out."""
        return None, await self.snapshot()

    @ray.method(num_returns=2)
    async def weights(self) -> tuple[None, dict[str, Any]]:
        """Like `rest`: the weights alone, and a sign that they are there."""
        return None, await self._work(self._trained.weights)

    async def checkpoint(self, progress: RunProgress, folder: Path) -> None:
        await self._work(self._trained.save, progress, folder)

    # -------------------------------------------------------------------------------- rollout

    async def become_rollout(self, secret: str) -> Served:
        """Serve the newest weights of the store."""
        from agentrl.runtime.roles import RolloutContext

        await self.leave_role()
        version, weights = await self._pull(None)
        host = ray.util.get_node_ip_address()
        self._rollout = await RolloutContext.start(
            self._config, secret, host, version, weights, self._broken.put_nowait
        )
        return Served(self._rollout.url, version)

    async def load(self, version: int) -> None:
        """Swap to these weights, by the run's policy for running turns.

        Raises `EngineError` when the role ends meanwhile.
        """
        _, weights = await self._pull(version)
        if self._rollout is None:
            raise EngineError(f"weights of version {version}: no policy is served here any more")
        await self._rollout.load(version, weights)

    async def take_swap_cost(self) -> SwapCost | None:
        """Of the swaps since the last call; None where no policy is served any more."""
        return await self._rollout.take_swap_cost() if self._rollout else None

    # ---------------------------------------------------------------------------------- genrm

    async def teach_judge(self, folder: Path, env: EnvRef) -> AsyncIterator[WarmupProgress]:
        """Supervised steps of the judge; a progress a step. Its weights are in `folder` then."""
        from agentrl.runtime.genrm import teach

        steps = teach(self._config, folder, env)
        while (progress := await self._work(next, steps, None)) is not None:
            yield progress

    async def become_genrm(self, secret: str, folder: Path) -> Served:
        """Serve the judge's weights, which stay the same for the whole run."""
        from agentrl.runtime.genrm import GenRMContext

        await self.leave_role()
        host = ray.util.get_node_ip_address()
        self._genrm = await GenRMContext.start(
            self._config, secret, host, folder, self._broken.put_nowait
        )
        return Served(self._genrm.url, version=0)

    async def _pull(self, version: int | None) -> tuple[int, dict[str, Any]]:
        published = await self._store.pull.remote(version)
        return published.version, await published.refs[0]

    # ---------------------------------------------------------------------------------- parts

    def _replicas(self, membership: Membership) -> Replicas:
        """Only the first one meets the others in its own house, whatever house it had before."""
        from agentrl.runtime.replicas import Replicas

        self._called_off = Event()
        return Replicas(
            membership, self._meeting if membership.rank == 0 else None, self._called_off
        )

    @property
    def _served(self) -> ServedEngine | None:
        return self._rollout or self._genrm

    @property
    def _trained(self) -> TrainingContext:
        assert self._training is not None
        return self._training

    async def _work(self, function: Callable[..., Result], *args: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
