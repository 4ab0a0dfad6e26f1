"""A run's line to the broker of a shared fleet: what it holds, and what it is told.

Invariants
- What the broker is told when it has to be started anew is what this run really holds: a slot counts
  from its grant until the run gave it back or learned that it is gone.
- After anything that the broker may not have heard, all of that is declared anew.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import NoReturn

import ray
import structlog
from ray.exceptions import ActorUnavailableError, RayActorError

from agentrl.config.fleet import fewest_workers, num_workers
from agentrl.config.run import RunConfig
from agentrl.config.sections import ShareSection
from agentrl.runtime.broker import NAME, News, Withdrawn, open_broker
from agentrl.runtime.link import Actor
from agentrl.runtime.process_logs import ProcessLogs
from scheduler.slices import Grant, Slot, Tenant

log = structlog.get_logger(__name__)

RETRY_S = 0.5


class BrokerLink:
    """`run()` must be running for news to come."""

    def __init__(self, tenant: Tenant, lifeline: Actor, logs: ProcessLogs) -> None:
        self._tenant = tenant
        self._lifeline = lifeline
        self._logs = logs
        self._broker: Actor | None = None
        self._held: set[Slot] = set()
        self._received = 0
        """Number of the newest news."""
        self._news: asyncio.Queue[News] = asyncio.Queue()
        self.heard_t = time.monotonic()
        """When the broker answered last."""

    async def run(self) -> NoReturn:
        while True:
            try:
                await self._listen()
            except ActorUnavailableError:
                log.info("the line to the fleet's broker broke for a moment")
            except RayActorError:
                log.warning("the fleet's broker was lost; looking for another")
            self._broker = None
            await asyncio.sleep(RETRY_S)

    async def _listen(self) -> None:
        """Until the broker has forgotten the run, or may have missed what it was told."""
        broker = open_broker()
        self._logs.follow(NAME, broker, from_now=True)
        declared = set(self._held)
        await broker.join.remote(self._tenant, self._lifeline, sorted(declared), self._received)
        self._broker = broker
        for slot in declared - self._held:
            await self.give_back(slot)  # which was not possible in the meantime
        while self._broker is broker:
            heard: list[News] | None = await broker.listen.remote(self._tenant.job, self._received)
            if heard is None:
                return
            self.heard_t = time.monotonic()
            for news in heard:
                self._note(news)
                self._news.put_nowait(news)
            self._received += len(heard)

    def _note(self, news: News) -> None:
        match news:
            case Grant():
                self._held.add(news.slot)
            case Withdrawn():
                self._held.discard(news.slot)

    async def next(self) -> News:
        return await self._news.get()

    @property
    def has_news(self) -> bool:
        """Whether `next()` would return at once."""
        return not self._news.empty()

    async def give_back(self, slot: Slot) -> None:
        """Nothing runs there any more."""
        self._held.discard(slot)
        if self._broker is not None:
            try:
                await self._broker.give_back.remote(self._tenant.job, slot)
            except RayActorError:
                self._broker = None  # it, or its successor, is told what is held

    async def begun(self) -> None:
        """There is work on every slot that is held."""
        if self._broker is not None:
            with suppress(RayActorError):
                await self._broker.begun.remote(self._tenant.job)

    async def leave(self) -> None:
        if self._broker is not None:
            await self._broker.leave.remote(self._tenant.job)


def tenant_of(config: RunConfig, share: ShareSection) -> Tenant:
    """What a run asks for: all its workers, under a name that no other launch has."""
    return Tenant(
        job=f"{config.name}-{ray.get_runtime_context().get_job_id()}",
        weight=share.weight,
        wanted=num_workers(config),
        at_least=fewest_workers(config),
        slice_s=share.min_slice_s,
    )
