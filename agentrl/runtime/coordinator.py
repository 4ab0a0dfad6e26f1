"""The actor that owns the scheduler: events in, in one order; decisions out, to whom they concern.

It decides nothing itself. It stamps every event with a time and a number, feeds it to the
scheduler, writes event and decisions to `events.jsonl` before anybody hears of them, and puts each
decision into the mailbox of the process that has to carry it out. Nobody waits for anybody here:
telling returns at once, and listening is a long poll.

All it knows is in that log. One that starts where another has died feeds it to its own scheduler,
which must decide the same, byte for byte, and goes on.

Invariants
- An event is taken in once, however often it is told: its sender numbers it, and the log has that.
- A decision reaches its recipient once, however often the coordinator dies (`mail`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.record.jsonl import AppendFile
from agentrl.runtime.mail import Mail, Mailbox
from agentrl.runtime.status import CoordinatorStatus
from scheduler.core import Scheduler
from scheduler.decisions import Cut, Decision, Place, Prewarm, Requeue
from scheduler.events import Event, Failed, FailureKind, Finished, RunStarted, Submitted, Tick
from scheduler.replay import LogEntry, replayed_lines

LAST_GENERATION = 1 << 30
"""Above every generation that a lost runner can have used."""


class Coordinator:
    """Ray actor. `name` in its methods is the calling process: the driver's or a runner's."""

    def __init__(
        self,
        scheduler: Scheduler,
        log: Path,
        log_start: int,
        clock: Callable[[], float],
        tick_s: float,
    ) -> None:
        """`scheduler` is fresh; `log_start` is the byte of the log where its launch begins."""
        self._scheduler = scheduler
        self._log_path = log
        self._log_start = log_start
        self._clock = clock
        self._tick_s = tick_s
        self._seq = 0
        self._mail: defaultdict[str, Mailbox] = defaultdict(Mailbox)
        self._taken_in: defaultdict[str, int] = defaultdict(int)
        """Number of the last event of each sender."""
        self._owner_of_trajectory: dict[str, str] = {}
        self._owner_of_job: dict[str, str] = {}
        self._lost: set[str] = set()
        self._told: Counter[str] = Counter()
        self._decided: Counter[str] = Counter()
        self._is_open = asyncio.Event()

    async def ready(self) -> None:
        """Go on from the log. Returns once that is done; from here on time passes for policies.

        Raises ValueError when the log cannot be replayed.
        """
        last_t = 0.0
        self._log_path.touch()
        with self._log_path.open("rb") as lines:
            lines.seek(self._log_start)
            for entry in replayed_lines(self._scheduler, lines):
                self._note(entry)
                last_t, self._seq = entry.event.t, entry.event.seq
        self._log = AppendFile(self._log_path)
        self._start = self._clock() - last_t
        self._is_open.set()
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

    async def hello(self, name: str, received: int) -> int:
        """The caller begins, or is here again, and has `received` decisions; what it was sent
        beyond these comes again. Returns the number of its last event that was taken in."""
        await self._is_open.wait()
        self._mail[name].start_over(received)
        return self._taken_in[name]

    async def tell(self, name: str, first: int, events: Sequence[Event], received: int) -> Mail:
        """Feed events, in their order, numbered from `first`; returns what is in the caller's
        mailbox by then. What was told before is passed over.

        What a lost process had still sent is dropped: nobody would ever end what it began.
        """
        if name in self._lost:
            return Mail(first=received + 1)
        mailbox, taken_in = self._mail[name], self._taken_in[name]
        assert first <= taken_in + 1, f"{name} tells event {first} after {taken_in}"
        mailbox.received(received)
        self._feed(name, events[taken_in + 1 - first :], first=taken_in + 1)
        return mailbox.take()

    async def listen(self, name: str, received: int) -> Mail:
        """The next decisions for the caller; empty when there were none for a while."""
        self._mail[name].received(received)
        return await self._mail[name].wait()

    async def learned(self) -> dict[str, Any]:
        """What the scheduler has learned so far, for a checkpoint."""
        return self._scheduler.save()

    async def lost(self, name: str) -> None:
        """A runner is gone: its attempts have failed, and so has all they were asking of judges."""
        await self._is_open.wait()
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

    def _feed(self, name: str, events: Sequence[Event], *, first: int | None = None) -> None:
        """Without `first` they are no events of the sender's own, and have no numbers."""
        entries: list[LogEntry] = []
        for offset, event in enumerate(events):
            self._seq += 1
            stamped = replace(event, t=self._clock() - self._start, seq=self._seq)
            entries.append(
                LogEntry(
                    event=stamped,
                    decisions=self._scheduler.on(stamped),
                    sender=name,
                    number=0 if first is None else first + offset,
                )
            )
        self._log.append(b"".join(entry.to_line() for entry in entries))
        for entry in entries:
            self._note(entry)

    def _note(self, entry: LogEntry) -> None:
        """Whose is what, how far everybody is, and what is to be delivered."""
        event = entry.event
        self._told[type(event).__name__] += 1
        self._decided.update(type(decision).__name__ for decision in entry.decisions)
        match event:
            case RunStarted():
                self._owner_of_job[event.job] = entry.sender
            case Submitted():
                self._owner_of_trajectory[event.trajectory_id] = entry.sender
        for decision in entry.decisions:
            self._mail[self._recipient(decision)].put(decision)
        if isinstance(event, Finished | Failed):
            self._owner_of_trajectory.pop(event.trajectory_id, None)
        if entry.number:
            self._taken_in[entry.sender] = entry.number

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
