"""Sees to it that a run has a coordinator: starts it, and another one in its place when it dies,
or lives and does not answer.

The next one goes on from the log, under the next name, where driver and runners find it. How long
that takes depends on how much of the log came after the state that was last kept here.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import ray
import structlog
from ray.exceptions import ActorUnschedulableError, RayActorError, RayTaskError

from agentrl.record.disk import DiskFailed
from agentrl.record.jsonl import AppendFile
from agentrl.record.layout import RunLayout
from agentrl.runtime.beside import beside
from agentrl.runtime.coordinator import Coordinator
from agentrl.runtime.coordinator_state import CoordinatorState
from agentrl.runtime.failures import ProcessLost, RunFailed
from agentrl.runtime.lifeline import answer_or_kill, outlive
from agentrl.runtime.link import RETRY_S, Actor, CoordinatorAddress
from agentrl.runtime.status import CoordinatorStatus
from scheduler.core import Scheduler

log = structlog.get_logger(__name__)

KEEP_STATE_S = 60.0
"""Between two states that are kept: one that goes on replays about this much at most."""


class CoordinatorKeeper:
    """`run()` must be running."""

    def __init__(
        self,
        scheduler: Scheduler,
        layout: RunLayout,
        *,
        tick_s: float,
        silence_timeout_s: float,
        start_timeout_s: float,
        on_lost: Callable[[], None],
        follow: Callable[[str, Actor], None],
    ) -> None:
        """`scheduler` is fresh; `follow` is told of each process that is started. The time-outs:
        until one that says nothing, or is not through with the log, is ended."""
        self.address = CoordinatorAddress(f"coordinator-{secrets.token_hex(8)}", 0)
        self._log = layout.events
        self._tick_s = tick_s
        self._silence_timeout_s = silence_timeout_s
        self._start_timeout_s = start_timeout_s
        self._on_lost = on_lost
        self._follow = follow
        whole = AppendFile(self._log)
        self._kept = CoordinatorState(scheduler=scheduler, log_bytes=whole.size).frozen()
        whole.close()
        self._is_there = asyncio.Event()

    async def ready(self) -> None:
        await self._is_there.wait()

    async def run(self) -> NoReturn:
        """Raises `ProcessLost` when the log of one that died cannot be replayed, `RunFailed` when
        Ray starts no other one here, and what keeps a living one from going on."""
        while True:
            self._actor = self._start()
            self._follow("coordinator", self._actor)
            try:
                await self._open()
                self._is_there.set()
                await beside(self._outlive(), self._keep_state())
            except RayActorError:
                ray.kill(self._actor)  # where only the line to it broke, two would write one log
                log.warning("the coordinator was lost; another one goes on from its log")
                self._on_lost()
            except ActorUnschedulableError as error:
                raise RunFailed(
                    "the coordinator was lost, and this machine, on which another one has to start, "
                    "is being taken away; go on elsewhere, from the newest checkpoint, with "
                    "`agentrl train --resume`"
                ) from error
            self._is_there.clear()
            self.address = self.address.after(1)

    async def _open(self) -> None:
        """Where that takes too long it is killed, which fails whatever else is asked of it."""
        try:
            await answer_or_kill(
                self.address.name,
                self._actor,
                self._actor.open.remote(),
                silence_timeout_s=self._start_timeout_s,
            )
        except RayTaskError as error:
            if isinstance(error.cause, DiskFailed):
                raise
            raise ProcessLost(
                f"the coordinator cannot go on from its log: {error.cause}"
            ) from error

    async def _outlive(self) -> NoReturn:
        await outlive(self.address.name, self._actor, silence_timeout_s=self._silence_timeout_s)

    async def lost(self, runner: str) -> None:
        """A runner is gone."""
        await self._ask("lost", runner)

    async def learned(self) -> dict[str, Any]:
        """What the scheduler has learned so far."""
        learned: dict[str, Any] = await self._ask("learned")
        return learned

    async def status(self) -> CoordinatorStatus:
        status: CoordinatorStatus = await self._ask("status")
        return status

    async def close(self) -> None:
        if self._is_there.is_set():
            with suppress(RayActorError):
                await self._actor.close.remote()

    async def _ask(self, method: str, *arguments: object) -> Any:
        """An answer of whichever coordinator there is by then."""
        while True:
            await self._is_there.wait()
            try:
                return await getattr(self._actor, method).remote(*arguments)
            except RayActorError:
                await asyncio.sleep(RETRY_S)

    async def _keep_state(self) -> NoReturn:
        while True:
            await asyncio.sleep(KEEP_STATE_S)
            self._kept = await self._actor.frozen.remote()

    def _start(self) -> Actor:
        """On this node, near the run folder, which it writes to."""
        node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        coordinator = ray.remote(Coordinator).options(
            name=self.address.name, num_cpus=0, scheduling_strategy=node
        )
        state = CoordinatorState.thawed(self._kept)
        return coordinator.remote(state, self._log, time.monotonic, self._tick_s)
