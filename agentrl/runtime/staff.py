"""Worker processes, and how one is put to work: started, given a role, and reported as ready.

A seat is a worker's place in the fleet, with its core; processes come and go in it, and what it
serves may change. Whoever is in a seat is known to the scheduler by the seat's name and generation.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ray
import structlog
from ray.exceptions import ActorUnschedulableError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agentrl.config.fleet import num_workers
from agentrl.config.judge import GenRMJudge
from agentrl.config.run import RunConfig
from agentrl.config.sections import BucketSection
from agentrl.engine.engine import EngineError
from agentrl.record.layout import RunLayout
from agentrl.runtime.broker import SlotPlace
from agentrl.runtime.cores import Cores, cores_for
from agentrl.runtime.dispatch import EngineAddress
from agentrl.runtime.failures import ProcessLost, RunFailed, in_short
from agentrl.runtime.link import Actor
from agentrl.runtime.worker import Served, Worker
from scheduler.events import Event, Role, WeightsLoaded, WorkerReady

log = structlog.get_logger(__name__)
Result = TypeVar("Result")
START_TRIES = 4
"""Processes in one seat, one after the other, before a launch gives up."""


class Superseded(Exception):
    """Whoever was in the seat is no longer there, or no longer there for what it was asked."""


GONE = (RayActorError, ActorUnschedulableError, EngineError, Superseded)
"""What a call to a worker raises that is lost, or whose machine or engine is."""


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
    actor: Actor = None
    """Its process; None before the first one."""
    generation: int = 0
    url: str = ""
    """Of its engine; empty while it serves none."""
    version: int = 0
    """Of the weights it has."""
    is_ready: bool = False
    """The process in the seat was reported ready for the seat's role."""
    is_leaving: bool = False
    """The process in the seat will be taken away."""
    is_wanted: asyncio.Event = field(default_factory=_set)
    """Unset: whoever leaves the seat has no successor, until it is set again."""
    slot: str = ""
    """Of a shared fleet, on which the seat is; empty while it has none, and in a fleet of our own."""

    @property
    def address(self) -> EngineAddress:
        return EngineAddress(
            worker_id=self.worker_id,
            generation=self.generation,
            bucket=self.bucket.name,
            url=self.url,
        )

    @property
    def can_train(self) -> bool:
        """In a step that begins now. The state of one that is leaving may rest already, and what it
        learned after that would end with it."""
        return self.is_ready and not self.is_leaving and self.role is Role.TRAINING

    def check(self, generation: int) -> None:
        """To be asked after every wait: raises `Superseded` when this is not the seat's generation
        any more, so that nothing is said of a process that was meant for the one before it."""
        if self.generation != generation:
            raise Superseded(f"{self.worker_id} has another generation now")

    @property
    def accelerators(self) -> tuple[str, ...]:
        return (self.slot,) if self.slot else tuple(f"core{core}" for core in self.cores)


class Staff:
    """`announce` tells the runners of an engine before the scheduler may place turns on it.

    `waiting` names a wait to the watchdog; `follow` is told of every process that is started, and
    `on_replaced` of those that are in the place of one that has ended.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        layout: RunLayout,
        store: Actor,
        secret: str,
        tell: Callable[[Event], None],
        announce: Callable[[WorkerSeat], Awaitable[None]],
        waiting: Callable[[str], AbstractContextManager[None]],
        on_replaced: Callable[[], None],
        follow: Callable[[str, Actor], None],
    ) -> None:
        self._config = config
        self._layout = layout
        self._store = store
        self._secret = secret
        self._tell = tell
        self._announce = announce
        self._waiting = waiting
        self._on_replaced = on_replaced
        self._follow = follow

    def seats(self, posts: Sequence[tuple[Role, BucketSection]], *, pin: bool) -> list[WorkerSeat]:
        """A seat for each role and kind of worker; nobody sits there yet."""
        cores = cores_for([bucket.cores for _, bucket in posts], pin=pin)
        return [
            WorkerSeat(f"worker-{number}", role, bucket, own)
            for number, ((role, bucket), own) in enumerate(zip(posts, cores, strict=True))
        ]

    def start_process(self, seat: WorkerSeat) -> None:
        """Put a new process into the seat; it is not ready yet."""
        options: dict[str, Any] = dict(self._resources(seat.bucket))
        gpu = None
        if seat.slot:
            node_id, gpu = SlotPlace.of(seat.slot)
            place = NodeAffinitySchedulingStrategy(node_id, soft=False)
            options = {"num_cpus": 0, "scheduling_strategy": place}
        worker = ray.remote(Worker).options(**options)
        seat.actor = worker.remote(self._config, self._store, seat.cores, seat.bucket.cores, gpu)
        self._follow(seat.worker_id, seat.actor)
        seat.url = ""

    def replace_process(self, seat: WorkerSeat) -> None:
        """As `start_process`, where the seat's last one has ended, or cannot be reached any more: it
        must not go on beside the next."""
        self._on_replaced()
        if seat.actor is not None:
            ray.kill(seat.actor)
        self.start_process(seat)

    async def persist(
        self, seat: WorkerSeat, work: Callable[[WorkerSeat], Awaitable[object]]
    ) -> None:
        """A worker's part of the run's start, by another process where one dies of it: before the
        run goes on nobody else replaces them. Raises `ProcessLost` when that goes on and on, and
        at once when the slot that the worker has to be on is gone."""
        for _ in range(START_TRIES):
            try:
                await work(seat)
                return
            except ActorUnschedulableError as error:
                raise ProcessLost(
                    f"the machine of {seat.worker_id} left the cluster while the run started"
                ) from error
            except RayActorError as error:
                reason = in_short(error)
                log.warning("a worker died at the start", worker=seat.worker_id, reason=reason)
                self.replace_process(seat)
        raise ProcessLost(
            f"{START_TRIES} processes of {seat.worker_id} died at the start: {reason}"
        )

    def _resources(self, bucket: BucketSection) -> dict[str, int]:
        """What a worker asks of Ray, which places it where that is free."""
        has_gpus = ray.cluster_resources().get("GPU", 0) >= num_workers(self._config)
        # a private cluster holds nothing else, and workers that share cores may be more than those
        is_private = self._config.runtime.ray_address is None
        return {"num_cpus": 0 if is_private else bucket.cores, "num_gpus": int(has_gpus)}

    def asked_of_ray(self, buckets: Sequence[BucketSection]) -> str:
        """For messages: what so many workers ask for."""
        asked = Counter(
            " and ".join(f"{name} {number}" for name, number in self._resources(bucket).items())
            for bucket in buckets
        )
        return ", ".join(f"{number} with {what}" for what, number in asked.items())

    async def put_to_work(self, seat: WorkerSeat) -> None:
        """Build what the seat's role needs, and report it ready."""
        await self.within_start(seat.worker_id, self.prepare(seat))
        await self.report(seat)

    async def placed(self, seat: WorkerSeat) -> None:
        """Wait until the seat's new process runs, for as long as the others keep the run going.

        Where a machine was lost, another one may join the cluster hours later.
        """
        asked = self.asked_of_ray([seat.bucket])
        running = asyncio.ensure_future(seat.actor.ready.remote())
        with self._waiting(f"a place in the cluster for {seat.worker_id} ({asked})"):
            while True:
                done, _ = await asyncio.wait(
                    {running}, timeout=self._config.runtime.start_timeout_s
                )
                if done:
                    break
                log.warning(
                    "there is no place for a worker yet",
                    worker=seat.worker_id,
                    asked=asked,
                    cluster=ray.cluster_resources(),
                    free=ray.available_resources(),
                )
        running.result()
        await self.check_folder(seat)

    async def check_folder(self, seat: WorkerSeat) -> None:
        """Workers write checkpoints and read a judge's weights in the run folder."""
        if not await seat.actor.sees.remote(self._layout.run):
            raise RunFailed(
                f"{seat.worker_id} was placed on a machine that does not see the run folder "
                f"{self._layout.root}; wanted a folder that all nodes of the cluster share, by "
                "`agentrl train --runs FOLDER`"
            )

    async def prepare(self, seat: WorkerSeat) -> None:
        """Build what the seat's role needs, with the newest weights.

        A training worker gets its state when it first takes part in a step.
        """
        generation = seat.generation
        served = await self._become(seat)
        seat.check(generation)
        seat.url, seat.version = served
        if seat.role is Role.ROLLOUT:
            await self._catch_up(seat, generation)

    async def _become(self, seat: WorkerSeat) -> Served:
        served: Served
        match seat.role:
            case Role.ROLLOUT:
                served = await seat.actor.become_rollout.remote(self._secret)
            case Role.GENRM:
                served = await seat.actor.become_genrm.remote(self._secret, self._layout.judge)
            case Role.TRAINING:
                await seat.actor.become_training.remote(None)
                served = Served(url="", version=await self._store.newest.remote())
        return served

    async def _catch_up(self, seat: WorkerSeat, generation: int) -> None:
        """Whoever publishes passes over a seat without a url, so what was published until it has
        one is loaded here."""
        while seat.version < (newest := await self._store.newest.remote()):
            await seat.actor.load.remote(newest)
            seat.check(generation)
            seat.version = newest

    async def load(self, seat: WorkerSeat, version: int) -> None:
        """Give a worker that serves the policy new weights; one that serves no more gets none."""
        if not seat.url:
            return  # on its way to this role; it takes the newest version when it gets there
        process, generation, began_s = seat.actor, seat.generation, time.monotonic()
        try:
            await process.load.remote(version)
        except GONE:
            return  # it takes the newest version when it serves again, as does its successor
        if seat.actor is not process:
            return  # what the next one has is its own
        seat.version = version
        self._tell(
            WeightsLoaded(
                worker_id=seat.worker_id,
                generation=generation,
                version=version,
                seconds=time.monotonic() - began_s,
            )
        )

    async def report(self, seat: WorkerSeat) -> None:
        """Tell the runners, and then the scheduler, that the seat is ready."""
        generation = seat.generation
        if seat.url:
            await self._announce(seat)
            seat.check(generation)
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
