"""One process's line to the coordinator: events out in batches, decisions in as they come.

Events are told in the order they happened, by one sender, so that the scheduler never sees an
effect before its cause. What happens within a few milliseconds travels in one call, and the longer
calls take, the more they gather: a busy machine is not kept busy by them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from scheduler.decisions import Decision
from scheduler.events import Event

MIN_GATHER_S, MAX_GATHER_S = 0.004, 0.02
"""How long events wait for others: far less than a turn takes, and calls cost more than events."""
GATHER_PER_CALL = 2.0
"""Of the time that the last call took."""
Actor = Any
"""A Ray actor handle; Ray gives no static type for one."""


class CoordinatorLink:
    """`run()` must be running for anything to travel."""

    def __init__(
        self, coordinator: Actor, name: str, on_decision: Callable[[Decision], None]
    ) -> None:
        self._coordinator = coordinator
        self._name = name
        self._on_decision = on_decision
        self._events: list[Event] = []
        self._news = asyncio.Event()

    async def join(self) -> None:
        """Before anything is told."""
        await self._coordinator.join.remote(self._name)

    def tell(self, event: Event) -> None:
        """Queue an event; the coordinator stamps its time and number."""
        self._events.append(event)
        self._news.set()

    async def run(self) -> NoReturn:
        """Never returns; raises when the coordinator is lost."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send())
            tasks.create_task(self._receive())
        raise AssertionError("both loops are endless")

    async def _send(self) -> NoReturn:
        loop, gather_s = asyncio.get_running_loop(), MIN_GATHER_S
        while True:
            await self._news.wait()
            await asyncio.sleep(gather_s)
            self._news.clear()
            events, self._events = self._events, []
            called_s = loop.time()
            decisions = await self._coordinator.tell.remote(self._name, events)
            took_s = loop.time() - called_s
            gather_s = min(max(MIN_GATHER_S, GATHER_PER_CALL * took_s), MAX_GATHER_S)
            self._deliver(decisions)

    async def _receive(self) -> NoReturn:
        while True:
            self._deliver(await self._coordinator.listen.remote(self._name))

    def _deliver(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self._on_decision(decision)
