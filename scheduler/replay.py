"""The log of a run, and the proof that it replays.

A log has one line an event, with the decisions it was answered by. Feeding the events to a fresh
scheduler that is wired the same way must give the same decisions, byte for byte; the first line
that differs is the answer when it does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import cast

from scheduler.codec import encode_line, from_dict, to_dict, to_json
from scheduler.core import Scheduler
from scheduler.decisions import Decision
from scheduler.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    event: Event
    decisions: tuple[Decision, ...]
    sender: str = ""
    """Who told of the event."""
    number: int = 0
    """Of the event among those of its sender, from 1 on; 0: nobody will ever tell it again."""

    def to_line(self) -> bytes:
        data = {
            "event": to_dict(self.event),
            "decisions": [to_dict(decision) for decision in self.decisions],
            "sender": self.sender,
            "number": self.number,
        }
        return encode_line(data) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> LogEntry:
        data = json.loads(line)
        return cls(
            event=cast(Event, from_dict(data["event"])),
            decisions=tuple(cast(Decision, from_dict(each)) for each in data["decisions"]),
            sender=data["sender"],
            number=data["number"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first event that a fresh scheduler answered in another way."""

    event: Event
    recorded: tuple[Decision, ...]
    replayed: tuple[Decision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    num_events: int
    num_decisions: int
    difference: Difference | None
    """None: every decision came out the same."""


def read_log(lines: Iterable[bytes]) -> Iterator[LogEntry]:
    """Entries of a log; a torn last line, left by a process that was killed, does not exist."""
    for line in lines:
        if line.endswith(b"\n"):
            yield LogEntry.from_line(line)


def replay(scheduler: Scheduler, log: Iterable[LogEntry]) -> ReplayReport:
    """Feed recorded events to a fresh scheduler and compare what it decides."""
    num_events = num_decisions = 0
    for entry in log:
        num_events += 1
        replayed = scheduler.on(entry.event)
        num_decisions += len(replayed)
        if _bytes(replayed) != _bytes(entry.decisions):
            difference = Difference(event=entry.event, recorded=entry.decisions, replayed=replayed)
            return ReplayReport(
                num_events=num_events, num_decisions=num_decisions, difference=difference
            )
    return ReplayReport(num_events=num_events, num_decisions=num_decisions, difference=None)


def replayed_lines(scheduler: Scheduler, lines: Iterable[bytes]) -> Iterator[LogEntry]:
    """Feed a log to a fresh scheduler, which has decided all of it when the entries end.

    Raises ValueError at the first line that does not come out byte for byte.
    """
    for line in lines:
        if not line.endswith(b"\n"):
            return
        recorded = LogEntry.from_line(line)
        entry = replace(recorded, decisions=scheduler.on(recorded.event))
        if entry.to_line() != line:
            raise ValueError(
                f"event {recorded.event.seq} was answered by {recorded.decisions} and is now "
                f"answered by {entry.decisions}"
            )
        yield entry


def _bytes(decisions: tuple[Decision, ...]) -> bytes:
    return b"\n".join(to_json(decision) for decision in decisions)
