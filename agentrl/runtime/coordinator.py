"""The actor that owns the scheduler: events in, in one order; decisions out, to whom they concern.

It decides nothing itself. It stamps every event with a time and a number, feeds it to the
scheduler, writes event and decisions to `events.jsonl` before anybody hears of them, and puts each
decision into the mailbox of the process that has to carry it out. Nobody waits for anybody here:
telling returns at once, and listening is a long poll.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.record.jsonl import AppendFile
from agentrl.runtime.status import CoordinatorStatus
from scheduler.core import Scheduler
from scheduler.decisions import Cut, Decision, Place, Prewarm, Requeue
from scheduler.events import Event, Failed, FailureKind, Finished, RunStarted, Submitted, Tick
from scheduler.replay import LogEntry

POLL_S = 10.0
"""A poll without news returns empty after this long, so that a lost caller is forgotten."""
LAST_GENERATION = 1 << 30
"""Above every generation that a lost runner can have used."""


class Mailbox:
    """Decisions that one process has not fetched yet."""

    def __init__(self) -> None:
        self._decisions: list[Decision] = []
        self._news = asyncio.Event()

    def put(self, decision: Decision) -> None:
        self._decisions.append(decision)
        self._news.set()

    def take(self) -> list[Decision]:
        taken, self._decisions = self._decisions, []
        self._news.clear()
        return taken

    async def wait(self) -> list[Decision]:
        try:
            async with asyncio.timeout(POLL_S):
                # `tell` may have taken what this was woken for; an empty answer costs two calls
                while not self._decisions:
                    await self._news.wait()
        except TimeoutError:
            return []
        return self.take()


class Coordinator:
    """Ray actor. `name` in its methods is the calling process: the driver's or a runner's."""

    def __init__(
        self, scheduler: Scheduler, log: Path, clock: Callable[[], float], tick_s: float
    ) -> None:
        self._scheduler = scheduler
        self._log = AppendFile(log)
        self._clock = clock
        self._tick_s = tick_s
        self._start = clock()
        self._seq = 0
        self._mail: defaultdict[str, Mailbox] = defaultdict(Mailbox)
        self._owner_of_trajectory: dict[str, str] = {}
        self._owner_of_job: dict[str, str] = {}
        self._lost: set[str] = set()
        self._told: Counter[str] = Counter()
        self._decided: Counter[str] = Counter()

    async def ready(self) -> None:
        """Returns once the actor runs; from here on time passes for its policies."""
        self._ticking = asyncio.create_task(self._tick())

    async def lifeline(self) -> None:
        """Never returns: the caller learns of a death by the failure of this call."""
        await asyncio.Event().wait()

    async def status(self) -> CoordinatorStatus:
        """For people who look on."""
        demands = {role: demand for (_, role), demand in self._scheduler.demands().items()}
        return CoordinatorStatus(
            demands=demands,
            workers=self._scheduler.members(),
            events=self._told,
            decisions=self._decided,
        )

    async def join(self, name: str) -> None:
        """A process begins, under a name that a lost one may have had."""
        self._lost.discard(name)

    async def tell(self, name: str, events: Sequence[Event]) -> list[Decision]:
        """Feed events, in their order; returns what is in the caller's mailbox by then.

        What a lost process had still sent is dropped: nobody would ever end what it began.
        """
        if name in self._lost:
            return []
        self._feed(name, events)
        return self._mail[name].take()

    async def listen(self, name: str) -> list[Decision]:
        """The next decisions for the caller; empty when there were none for a while."""
        return await self._mail[name].wait()

    async def learned(self) -> dict[str, Any]:
        """What the scheduler has learned so far, for a checkpoint."""
        return self._scheduler.save()

    async def lost(self, name: str) -> None:
        """A runner is gone: its attempts have failed, and so has all they were asking of judges."""
        owned = [key for key, owner in self._owner_of_trajectory.items() if owner == name]
        self._feed(
            name,
            [
                Failed(trajectory_id=key, generation=LAST_GENERATION, kind=FailureKind.INFRA)
                for key in owned
            ],
        )
        self._mail.pop(name, None)
        self._lost.add(name)

    async def close(self) -> None:
        self._ticking.cancel()
        self._log.sync()
        self._log.close()

    def _feed(self, name: str, events: Sequence[Event]) -> None:
        lines: list[bytes] = []
        for event in events:
            self._seq += 1
            stamped = replace(event, t=self._clock() - self._start, seq=self._seq)
            self._note_owner(name, stamped)
            decisions = self._scheduler.on(stamped)
            self._told[type(event).__name__] += 1
            self._decided.update(type(decision).__name__ for decision in decisions)
            lines.append(LogEntry(event=stamped, decisions=decisions).to_line())
            for decision in decisions:
                self._mail[self._recipient(decision)].put(decision)
            if isinstance(event, Finished | Failed):
                self._owner_of_trajectory.pop(event.trajectory_id, None)
        self._log.append(b"".join(lines))

    def _note_owner(self, name: str, event: Event) -> None:
        match event:
            case RunStarted():
                self._owner_of_job[event.job] = name
            case Submitted():
                self._owner_of_trajectory[event.trajectory_id] = name

    def _recipient(self, decision: Decision) -> str:
        match decision:
            case Place() | Requeue() | Prewarm() | Cut():
                return self._owner_of_trajectory[decision.trajectory_id]
            case _:
                return self._owner_of_job[decision.job]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self._feed("clock", [Tick()])
