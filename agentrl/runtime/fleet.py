"""The processes of a run: made, given their roles, watched, replaced and ended.

One worker trains, the others serve rollout or judge (GenRM); during the supervised warm-up all but
the judges train the policy. A serving worker that dies is replaced and loads the newest weights,
while its turns go on elsewhere, or wait, with the tokens they have. The training worker and the
coordinator hold state that only a checkpoint can bring back, so their loss is `ProcessLost` for
whoever started the run.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import ray
import structlog
from ray.exceptions import RayActorError

from agentrl.config.checks import num_genrm_workers, num_workers
from agentrl.config.judge import GenRMJudge
from agentrl.config.run import RunConfig
from agentrl.record.layout import RunLayout
from agentrl.registry import EnvRef
from agentrl.runtime.coordinator import Coordinator
from agentrl.runtime.cores import cores_for
from agentrl.runtime.display import WarmupProgress
from agentrl.runtime.failures import ProcessLost, in_short
from agentrl.runtime.link import Actor
from agentrl.runtime.parameters import ParameterStore
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.replicas import Seat
from agentrl.runtime.reports import TrainedStep
from agentrl.runtime.runner import Runner
from agentrl.runtime.worker import Worker
from agentrl.types import Group
from scheduler.core import Scheduler
from scheduler.events import Event, Role, WeightsLoaded, WorkerLost, WorkerReady

log = structlog.get_logger(__name__)
Result = TypeVar("Result")


@dataclass(slots=True)
class RolloutSeat:
    """A serving worker's place in the fleet; processes come and go in it."""

    worker_id: str
    role: Role
    core: int | None
    actor: Actor
    generation: int = 0
    url: str = ""


class Fleet:
    """`start()` first, then roles; `supervise()` must run while it is used.

    `announce` tells the runners of an engine before the scheduler may place turns on it.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        layout: RunLayout,
        coordinator: Actor,
        tell: Callable[[Event], None],
        announce: Callable[[RolloutSeat], Awaitable[None]],
    ) -> None:
        self._config = config
        self._layout = layout
        self._coordinator = coordinator
        self._tell = tell
        self._announce = announce
        self._rollouts: list[RolloutSeat] = []
        self._judges: list[RolloutSeat] = []
        self._secret = secrets.token_urlsafe(32)

    async def start(self) -> None:
        """Start the store and the workers, and wait until they run."""
        config = self._config
        is_local = config.runtime.ray_address is None
        cores = cores_for(num_workers(config), pin=config.runtime.pin_cores and is_local)
        self._store = ray.remote(ParameterStore).options(num_cpus=0).remote()
        self._trainer, *others = (_start_worker(config, self._store, core) for core in cores)
        names = [
            *((Role.ROLLOUT, number) for number in range(config.runtime.rollout_workers)),
            *((Role.GENRM, number) for number in range(num_genrm_workers(config))),
        ]
        seats = [
            RolloutSeat(f"{role}-{number}", role, core, actor)
            for (role, number), core, actor in zip(names, cores[1:], others, strict=True)
        ]
        self._rollouts = [seat for seat in seats if seat.role is Role.ROLLOUT]
        self._judges = [seat for seat in seats if seat.role is Role.GENRM]
        actors = [self._coordinator, self._trainer, *others]
        starting = asyncio.gather(*(actor.ready.remote() for actor in actors))
        await self._within_start("the coordinator and the workers", starting)

    async def start_runner(self, env: EnvRef, number: int) -> Actor:
        """A runner that knows every engine there is."""
        runner = _start_runner(self._config, env, number, self._coordinator, self._secret)
        await self._within_start(f"runner-{number}", runner.ready.remote())
        for seat in self._serving:
            if seat.url:
                await runner.connect.remote(seat.worker_id, seat.generation, seat.url)
        return runner

    # --------------------------------------------------------------------------------- roles

    async def warm_up(self, on_progress: Callable[[WarmupProgress], None]) -> None:
        """Every worker trains on demonstrations; afterwards the first one goes on as trainer."""
        replicas = [self._trainer, *(seat.actor for seat in self._rollouts)]
        await self._of_trainer(*(actor.become_training.remote(None) for actor in replicas))
        meeting = await self._trainer.host_meeting.remote(len(replicas))
        seats = [
            Seat(rank=rank, size=len(replicas), host=meeting.host, port=meeting.port)
            for rank in range(len(replicas))
        ]
        first, *others = (
            actor.warm_up.options(num_returns="streaming").remote(seat)
            for actor, seat in zip(replicas, seats, strict=True)
        )
        try:
            async for progress in first:
                on_progress(await progress)
            for other in others:
                async for progress in other:
                    await progress
        except RayActorError as error:
            raise ProcessLost(f"a worker was lost during warm-up: {in_short(error)}") from error

    async def teach_judge(self, on_progress: Callable[[WarmupProgress], None]) -> None:
        """The first judge learns from the environment's rule and leaves its weights in the run."""
        try:
            async for progress in (
                self._judges[0]
                .actor.teach_judge.options(num_returns="streaming")
                .remote(self._layout.judge)
            ):
                on_progress(await progress)
        except RayActorError as error:
            raise ProcessLost(f"the judge was lost in its warm-up: {in_short(error)}") from error

    async def take_roles(self, step: int, *, checkpoint: Path | None, is_warm: bool) -> None:
        """The first worker trains, the others serve the weights of `step`, or judge."""
        if not is_warm:
            await self._of_trainer(self._trainer.become_training.remote(checkpoint))
        await self._of_trainer(self._trainer.publish.remote(step))
        await asyncio.gather(*(self._serve(seat) for seat in self._serving))

    @property
    def _serving(self) -> list[RolloutSeat]:
        return [*self._rollouts, *self._judges]

    async def _serve(self, seat: RolloutSeat) -> None:
        judge, slots = self._config.judge, self._config.runtime.slots
        if seat.role is Role.GENRM:
            assert isinstance(judge, GenRMJudge)
            serving = seat.actor.become_genrm.remote(self._secret, self._layout.judge)
            slots = judge.slots
        else:
            serving = seat.actor.become_rollout.remote(self._secret)
        seat.url = await self._within_start(seat.worker_id, serving)
        await self._announce(seat)
        self._tell(
            WorkerReady(
                worker_id=seat.worker_id,
                generation=seat.generation,
                role=seat.role,
                max_running=slots,
            )
        )

    # --------------------------------------------------------------------------------- verbs

    async def train(self, groups: Sequence[Group]) -> TrainedStep:
        trained: TrainedStep
        (trained,) = await self._of_trainer(self._trainer.train.remote(groups))
        return trained

    async def publish(self, version: int) -> None:
        """Returns when every serving worker has the weights; a lost one gets them on its return."""
        await self._of_trainer(self._trainer.publish.remote(version))
        await asyncio.gather(*(self._load(seat, version) for seat in self._rollouts))

    async def checkpoint(self, progress: RunProgress) -> None:
        await self._of_trainer(self._trainer.checkpoint.remote(progress, self._layout.checkpoints))

    async def close(self) -> None:
        """Let engines and the log end well; processes themselves end with the cluster."""
        leaving = [seat.actor.leave_role.remote() for seat in self._serving]
        await asyncio.gather(*leaving, self._coordinator.close.remote(), return_exceptions=True)

    # --------------------------------------------------------------------------- supervision

    async def supervise(self) -> NoReturn:
        """Replace serving workers that die; raise `ProcessLost` for the others."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._guard(self._trainer.lifeline.remote(), "the training worker"))
            tasks.create_task(self._guard(self._coordinator.lifeline.remote(), "the coordinator"))
            for seat in self._serving:
                tasks.create_task(self._keep(seat))
        raise AssertionError("all loops are endless")

    async def _guard(self, lifeline: Awaitable[None], name: str) -> None:
        try:
            await lifeline
        except RayActorError as error:
            raise ProcessLost(f"{name} was lost: {in_short(error)}") from error

    async def _keep(self, seat: RolloutSeat) -> NoReturn:
        while True:
            try:
                await seat.actor.lifeline.remote()
            except RayActorError:
                log.warning("a worker was lost; starting another", worker=seat.worker_id)
            self._tell(WorkerLost(worker_id=seat.worker_id, generation=seat.generation))
            seat.actor = _start_worker(self._config, self._store, seat.core)
            seat.generation += 1
            await self._serve(seat)

    async def _load(self, seat: RolloutSeat, version: int) -> None:
        try:
            await seat.actor.load.remote(version)
        except RayActorError:
            return  # its successor pulls the newest version when it starts
        self._tell(
            WeightsLoaded(
                worker_id=seat.worker_id,
                generation=seat.generation,
                version=version,
            )
        )

    async def _of_trainer(self, *work: Awaitable[Result]) -> list[Result]:
        try:
            return list(await asyncio.gather(*work))
        except RayActorError as error:
            raise ProcessLost(f"the training worker was lost: {in_short(error)}") from error

    async def _within_start(self, name: str, work: Awaitable[Result]) -> Result:
        timeout_s = self._config.runtime.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except TimeoutError:
            raise ProcessLost(
                f"{name} did not start within {timeout_s:.0f} s (runtime.start_timeout_s); "
                f"the cluster has {ray.cluster_resources()} and {ray.available_resources()} is free"
            ) from None


def _start_worker(config: RunConfig, store: Actor, core: int | None) -> Actor:
    has_gpus = ray.cluster_resources().get("GPU", 0) >= num_workers(config)
    # a private cluster holds nothing else, and workers that share cores may be more than those
    num_cpus = 0 if config.runtime.ray_address is None else 1
    worker = ray.remote(Worker).options(num_cpus=num_cpus, num_gpus=1 if has_gpus else 0)
    return worker.remote(config, store, core)


def start_coordinator(scheduler: Scheduler, layout: RunLayout) -> Actor:
    """On this node, near the run folder, which it writes to."""
    node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    coordinator = ray.remote(Coordinator).options(num_cpus=0, scheduling_strategy=node)
    return coordinator.remote(scheduler, layout.events, time.monotonic)


def _start_runner(
    config: RunConfig, env: EnvRef, number: int, coordinator: Actor, secret: str
) -> Actor:
    runner = ray.remote(Runner).options(num_cpus=0)
    return runner.remote(config, env, f"runner-{number}", coordinator, secret)
