"""One process's line to the coordinator: events out in batches, decisions in as they come.

Events are told in the order they happened, by one sender, so that the scheduler never sees an
effect before its cause. What happens within a few milliseconds travels in one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from scheduler.decisions import Decision
from scheduler.events import Event

GATHER_S = 0.004
"""Events wait this long for others: far less than a turn takes, and calls cost more than events."""
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
        while True:
            await self._news.wait()
            await asyncio.sleep(GATHER_S)
            self._news.clear()
            events, self._events = self._events, []
            self._deliver(await self._coordinator.tell.remote(self._name, events))

    async def _receive(self) -> NoReturn:
        while True:
            self._deliver(await self._coordinator.listen.remote(self._name))

    def _deliver(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self._on_decision(decision)
