"""The actor that owns the scheduler: events in, in one order; decisions out, to whom they concern.

It decides nothing itself. It stamps every event with a time and a number, feeds it to the
scheduler, writes event and decisions to `events.jsonl` before anybody hears of them, and puts each
decision into the mailbox of the process that has to carry it out. Nobody waits for anybody here:
telling returns at once, and listening is a long poll.

All it knows is in that log. One that starts where another has died goes on from what that one had
last kept of itself: it feeds the rest of the log to its scheduler, which must decide the same, byte
for byte.

Invariants
- An event is taken in once, however often it is told: its sender numbers it, and the log has that.
- A decision reaches its recipient once, however often the coordinator dies (`mail`).
- What failed to be taken in or written is failed for good: the scheduler knows what the log lacks, so
  every later call raises the first error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.record.disk import needed_on_disk
from agentrl.record.jsonl import AppendFile
from agentrl.runtime.coordinator_state import CoordinatorState
from agentrl.runtime.mail import Mail
from agentrl.runtime.process_logs import LoggingActor
from agentrl.runtime.status import CoordinatorStatus
from scheduler.events import Event, Failed, FailureKind, Tick
from scheduler.replay import LogEntry, replayed_lines

LAST_GENERATION = 1 << 30
"""Above every generation that a lost runner can have used."""


class Coordinator(LoggingActor):
    """Ray actor. `name` in its methods is the calling process: the driver's or a runner's."""

    def __init__(
        self,
        state: CoordinatorState,
        log: Path,
        clock: Callable[[], float],
        tick_s: float,
    ) -> None:
        """`state` may lag behind the log."""
        self._state = state
        self._log_path = log
        self._clock = clock
        self._tick_s = tick_s
        self._is_open = asyncio.Event()
        self._failure: Exception | None = None

    async def open(self) -> None:
        """Go on from the log. Returns once that is done; from here on time passes for policies.

        Raises ValueError when the log cannot be replayed, and `DiskFailed`.
        """
        state = self._state
        with needed_on_disk(self._log_path):
            self._log_path.touch()
        with self._log_path.open("rb") as lines:
            lines.seek(state.log_bytes)
            for entry in replayed_lines(state.scheduler, lines):
                state.note(entry)
        with needed_on_disk(self._log_path):
            self._log = AppendFile(self._log_path)
        state.log_bytes = self._log.size
        self._start = self._clock() - state.t
        self._is_open.set()
        self._ticking = asyncio.create_task(self._tick())

    async def ready(self) -> None:
        """Returns at once where the log is open."""
        await self._is_open.wait()

    async def lifeline(self) -> None:
        """Never returns: the caller learns of a death by the failure of this call, and of what
        keeps a living coordinator from going on."""
        await asyncio.shield(self._ticking)

    async def status(self) -> CoordinatorStatus:
        """For people who look on."""
        scheduler = self._state.scheduler
        return CoordinatorStatus(
            demands={role: demand for (_, role), demand in scheduler.demands().items()},
            workers=scheduler.members(),
            events=self._state.told,
            decisions=self._state.decided,
        )

    async def hello(self, name: str, received: int) -> int:
        """The caller begins, or is here again, and has `received` decisions; what it was sent
        beyond these comes again. Returns the number of its last event that was taken in."""
        await self._is_open.wait()
        self._check()
        self._state.mail[name].start_over(received)
        return self._state.taken_in[name]

    async def tell(self, name: str, first: int, events: Sequence[Event], received: int) -> Mail:
        """Feed events, in their order, numbered from `first`; returns what is in the caller's
        mailbox by then. What was told before is passed over.

        What a lost process had still sent is dropped: nobody would ever end what it began.
        """
        self._check()
        if name in self._state.lost:
            return Mail(first=received + 1)
        mailbox, taken_in = self._state.mail[name], self._state.taken_in[name]
        assert first <= taken_in + 1, f"{name} tells event {first} after {taken_in}"
        mailbox.received(received)
        self._feed(name, events[taken_in + 1 - first :], first=taken_in + 1)
        return mailbox.take()

    async def listen(self, name: str, received: int) -> Mail:
        """The next decisions for the caller; empty when there were none for a while."""
        self._check()
        mailbox = self._state.mail[name]
        mailbox.received(received)
        return await mailbox.wait()

    async def learned(self) -> dict[str, Any]:
        """What the scheduler has learned so far, for a checkpoint."""
        self._check()
        return self._state.scheduler.save()

    async def frozen(self) -> bytes:
        """All that the log has said so far, for a `CoordinatorState` to go on from."""
        self._check()
        return self._state.frozen()

    async def lost(self, name: str) -> None:
        """A runner is gone: its attempts have failed, and so has all they were asking of judges."""
        await self._is_open.wait()
        self._feed(
            name,
            [
                Failed(trajectory_id=key, generation=LAST_GENERATION, kind=FailureKind.INFRA)
                for key in self._state.owned_by(name)
            ],
        )
        self._state.mail.pop(name, None)
        self._state.lost.add(name)

    async def close(self) -> None:
        self._ticking.cancel()
        self._log.sync()
        self._log.close()

    def _feed(self, name: str, events: Sequence[Event], *, first: int | None = None) -> None:
        """Without `first` they are no events of the sender's own, and have no numbers."""
        self._check()
        try:
            self._take_in(name, events, first=first)
        except Exception as error:
            self._failure = error
            raise

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _take_in(self, name: str, events: Sequence[Event], *, first: int | None) -> None:
        state = self._state
        entries: list[LogEntry] = []
        for offset, event in enumerate(events):
            now = self._clock() - self._start
            stamped = replace(event, t=now, seq=state.seq + 1 + offset)
            entries.append(
                LogEntry(
                    event=stamped,
                    decisions=state.scheduler.on(stamped),
                    sender=name,
                    number=0 if first is None else first + offset,
                )
            )
        with needed_on_disk(self._log_path):
            self._log.append(b"".join(entry.to_line() for entry in entries))
        for entry in entries:
            state.note(entry)
        state.log_bytes = self._log.size

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self._feed("clock", [Tick()])
