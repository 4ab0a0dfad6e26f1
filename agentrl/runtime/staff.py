"""Worker processes, and how one is put to work: started, given a role, and reported as ready.

A seat is a worker's place in the fleet, with its core; processes come and go in it, and what it
serves may change. Whoever is in a seat is known to the scheduler by the seat's name and generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import ray

from agentrl.config.fleet import num_workers
from agentrl.config.judge import GenRMJudge
from agentrl.config.run import RunConfig
from agentrl.config.sections import BucketSection
from agentrl.record.layout import RunLayout
from agentrl.runtime.cores import Cores, cores_for
from agentrl.runtime.dispatch import EngineAddress
from agentrl.runtime.failures import ProcessLost
from agentrl.runtime.link import Actor
from agentrl.runtime.worker import Served, Worker
from scheduler.events import Event, Role, WorkerReady

Result = TypeVar("Result")


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True)
class WorkerSeat:
    """`generation` and `role` are those that the scheduler knows, or will learn next."""

    worker_id: str
    role: Role
    bucket: BucketSection
    """What it is as a rollout worker; in other roles only its cores count."""
    cores: Cores
    actor: Actor
    generation: int = 0
    url: str = ""
    """Of its engine; empty while it serves none."""
    version: int = 0
    """Of the weights it had when it was made ready."""
    is_ready: bool = False
    """The process in the seat was reported ready for the seat's role."""
    is_leaving: bool = False
    """The process in the seat will be taken away."""
    is_wanted: asyncio.Event = field(default_factory=_set)
    """Unset: whoever leaves the seat has no successor, until it is set again."""

    @property
    def address(self) -> EngineAddress:
        return EngineAddress(
            worker_id=self.worker_id,
            generation=self.generation,
            bucket=self.bucket.name,
            url=self.url,
        )

    @property
    def accelerators(self) -> tuple[str, ...]:
        return tuple(f"core{core}" for core in self.cores)


class Staff:
    """`announce` tells the runners of an engine before the scheduler may place turns on it."""

    def __init__(
        self,
        *,
        config: RunConfig,
        layout: RunLayout,
        store: Actor,
        secret: str,
        tell: Callable[[Event], None],
        announce: Callable[[WorkerSeat], Awaitable[None]],
    ) -> None:
        self._config = config
        self._layout = layout
        self._store = store
        self._secret = secret
        self._tell = tell
        self._announce = announce

    def hire(self, posts: Sequence[tuple[Role, BucketSection]], *, pin: bool) -> list[WorkerSeat]:
        """A seat with a new process for each role and kind of worker."""
        cores = cores_for([bucket.cores for _, bucket in posts], pin=pin)
        return [
            WorkerSeat(f"worker-{number}", role, bucket, own, self.process(bucket, own))
            for number, ((role, bucket), own) in enumerate(zip(posts, cores, strict=True))
        ]

    def process(self, bucket: BucketSection, cores: Cores) -> Actor:
        has_gpus = ray.cluster_resources().get("GPU", 0) >= num_workers(self._config)
        # a private cluster holds nothing else, and workers that share cores may be more than those
        num_cpus = 0 if self._config.runtime.ray_address is None else 1
        worker = ray.remote(Worker).options(num_cpus=num_cpus, num_gpus=1 if has_gpus else 0)
        return worker.remote(self._config, self._store, cores, bucket.cores)

    async def put_to_work(self, seat: WorkerSeat) -> None:
        """Build what the seat's role needs, and report it ready."""
        seat.version = await self.within_start(seat.worker_id, self.prepare(seat))
        await self.report(seat)

    async def prepare(self, seat: WorkerSeat) -> int:
        """Build what the seat's role needs; returns the version of the weights it has then.

        A training worker gets its state when it first takes part in a step.
        """
        match seat.role:
            case Role.ROLLOUT:
                served: Served = await seat.actor.become_rollout.remote(self._secret)
            case Role.GENRM:
                served = await seat.actor.become_genrm.remote(self._secret, self._layout.judge)
            case Role.TRAINING:
                await seat.actor.become_training.remote(None)
                newest: int = await self._store.newest.remote()
                seat.url = ""
                return newest
        seat.url = served.url
        return served.version

    async def report(self, seat: WorkerSeat) -> None:
        """Tell the runners, and then the scheduler, that the seat is ready."""
        if seat.url:
            await self._announce(seat)
        seat.is_ready = True
        self._tell(
            WorkerReady(
                worker_id=seat.worker_id,
                generation=seat.generation,
                role=seat.role,
                bucket=seat.bucket.name,
                tp=seat.bucket.cores,
                max_running=self._max_running(seat),
                policy_version=seat.version,
                kv_tokens=self._kv_tokens(seat),
                accelerators=seat.accelerators,
            )
        )

    def _max_running(self, seat: WorkerSeat) -> int:
        match seat.role:
            case Role.ROLLOUT:
                return seat.bucket.max_running
            case Role.GENRM:
                judge = self._config.judge
                assert isinstance(judge, GenRMJudge), "only runs with such a judge have the role"
                return judge.slots
            case Role.TRAINING:
                return 1

    def _kv_tokens(self, seat: WorkerSeat) -> int | None:
        config = self._config
        match seat.role:
            case Role.ROLLOUT:
                return config.runtime.slots * config.rollout.context_tokens
            case Role.GENRM:
                judge = config.judge
                assert isinstance(judge, GenRMJudge), "only runs with such a judge have the role"
                return judge.slots * judge.context_tokens
            case Role.TRAINING:
                return None

    async def within_start(self, name: str, work: Awaitable[Result]) -> Result:
        timeout_s = self._config.runtime.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except TimeoutError:
            raise ProcessLost(
                f"{name} did not start within {timeout_s:.0f} s (runtime.start_timeout_s); "
                f"the cluster has {ray.cluster_resources()} and {ray.available_resources()} is free"
            ) from None
