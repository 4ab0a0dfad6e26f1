"""One process's line to the coordinator: events out in batches, decisions in as they come.

Events are told in the order they happened, by one sender, so that the scheduler never sees an
effect before its cause. What happens within a few milliseconds travels in one call, and the longer
calls take, the more they gather: a busy machine is not kept busy by them.

A coordinator that is lost has a successor under the next name, which knows all that was written to
the log. The link looks for it, tells it what that lacks, and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import ray
import structlog
from ray.exceptions import ActorUnavailableError, RayActorError

from agentrl.runtime.beside import beside
from agentrl.runtime.mail import Mail
from scheduler.decisions import Decision
from scheduler.events import Event

log = structlog.get_logger(__name__)

MIN_GATHER_S, MAX_GATHER_S = 0.004, 0.02
"""How long events wait for others: far less than a turn takes, and calls cost more than events."""
GATHER_PER_CALL = 2.0
"""Of the time that the last call took."""
RETRY_S = 0.1
"""Between two looks for a coordinator."""
LOOK_AHEAD = 4
"""So many coordinators one after the other may die unnoticed by a process that is just starting."""
Actor = Any
"""A Ray actor handle; Ray gives no static type for one."""


class CoordinatorAddress(NamedTuple):
    """Of one of a run's coordinators. Each has a name of its own, since Ray goes on finding a dead
    actor under the name it had."""

    run: str
    serial: int

    @property
    def name(self) -> str:
        return f"{self.run}-{self.serial}"

    def after(self, number: int) -> CoordinatorAddress:
        """Of the one that many places after this one."""
        return CoordinatorAddress(self.run, self.serial + number)


class CoordinatorLink:
    """`run()` must be running for anything to travel."""

    def __init__(
        self,
        coordinator: CoordinatorAddress,
        name: str,
        on_decision: Callable[[Decision], None],
        *,
        find: Callable[[str], Actor] = ray.get_actor,
    ) -> None:
        """`coordinator` is the newest there is, or an older one, and `name` this process's own,
        which no process had before. `find` raises ValueError when no actor has a name."""
        self._coordinator = coordinator
        self._name = name
        self._on_decision = on_decision
        self._find = find
        self._events: list[Event] = []
        """Those that the coordinator has not acknowledged."""
        self._first = 1
        """Number of the first of them."""
        self._received = 0
        self._early: dict[int, Decision] = {}
        """Decisions that overtook others, by number."""
        self._news = asyncio.Event()

    def tell(self, event: Event) -> None:
        """Queue an event; the coordinator stamps its time and number."""
        self._events.append(event)
        self._news.set()

    async def run(self) -> NoReturn:
        """Raises what keeps a living coordinator from going on."""
        while True:
            coordinator = await self._connect()
            try:
                await beside(self._send(coordinator), self._receive(coordinator))
            except RayActorError:
                log.info("lost the coordinator; looking for its successor", process=self._name)

    async def _connect(self) -> Actor:
        """Whoever keeps the coordinator sees to it that there is one, or ends the run."""
        while True:
            coordinator = await self._look()
            try:
                self._acknowledged(await coordinator.hello.remote(self._name, self._received))
            except ActorUnavailableError:
                await asyncio.sleep(RETRY_S)
            except RayActorError:
                self._coordinator = self._coordinator.after(1)
            else:
                self._early.clear()
                self._news.set()
                return coordinator

    async def _look(self) -> Actor:
        while True:
            for ahead in range(LOOK_AHEAD):
                address = self._coordinator.after(ahead)
                try:
                    found = await asyncio.to_thread(self._find, address.name)
                except ValueError:
                    continue  # not there yet, or not any more
                self._coordinator = address
                return found
            await asyncio.sleep(RETRY_S)

    async def _send(self, coordinator: Actor) -> NoReturn:
        loop, gather_s = asyncio.get_running_loop(), MIN_GATHER_S
        while True:
            await self._news.wait()
            await asyncio.sleep(gather_s)
            self._news.clear()
            events = list(self._events)
            if events:
                called_s = loop.time()
                mail = await coordinator.tell.remote(
                    self._name, self._first, events, self._received
                )
                took_s = loop.time() - called_s
                gather_s = min(max(MIN_GATHER_S, GATHER_PER_CALL * took_s), MAX_GATHER_S)
                self._acknowledged(self._first + len(events) - 1)
                self._deliver(mail)

    async def _receive(self, coordinator: Actor) -> NoReturn:
        while True:
            self._deliver(await coordinator.listen.remote(self._name, self._received))

    def _acknowledged(self, number: int) -> None:
        """The coordinator has taken in the events up to this one."""
        del self._events[: number + 1 - self._first]
        self._first = number + 1

    def _deliver(self, mail: Mail) -> None:
        """In order, whichever call brought what."""
        self._early.update(enumerate(mail.decisions, mail.first))
        while (decision := self._early.pop(self._received + 1, None)) is not None:
            self._received += 1
            self._on_decision(decision)
