"""Decisions on their way to the process that has to carry them out.

They are numbered for each recipient, in the order they were made, and kept until the recipient says
that it has them. So neither a lost answer nor a coordinator that starts again from its log loses one
or delivers one twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.decisions import Decision

POLL_S = 10.0
"""A poll without news returns empty after this long, so that a lost caller is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    first: int
    """Number of the first of these; they follow each other without a gap."""
    decisions: tuple[Decision, ...] = ()


class Mailbox:
    """Of one recipient. A copy of it has what is kept, and nobody who waits."""

    def __init__(self, first: int = 1, kept: Iterable[Decision] = ()) -> None:
        self._kept = deque(kept)
        self._first = first
        """Number of the oldest one kept."""
        self._sent = 0
        self._visit = 0
        self._news = asyncio.Event()

    def __reduce__(self) -> tuple[type[Mailbox], tuple[int, tuple[Decision, ...]]]:
        return Mailbox, (self._first, tuple(self._kept))

    def put(self, decision: Decision) -> None:
        self._kept.append(decision)
        self._news.set()

    def received(self, number: int) -> None:
        """The recipient has all up to this one."""
        while self._first <= number and self._kept:
            self._kept.popleft()
            self._first += 1

    def start_over(self, received: int) -> None:
        """The recipient has these, and waits for the rest anew; who waited before is forgotten."""
        self.received(received)
        self._sent = received
        self._visit += 1
        self._news.set()

    def take(self) -> Mail:
        """What was not sent yet."""
        taken = tuple(self._kept)[self._sent + 1 - self._first :]
        mail = Mail(first=self._sent + 1, decisions=taken)
        self._sent += len(taken)
        return mail

    async def wait(self) -> Mail:
        """What comes next; empty when nothing does for a while."""
        visit = self._visit
        try:
            async with asyncio.timeout(POLL_S):
                # `tell` may have sent what this was woken for; an empty answer costs two calls
                while visit == self._visit and self._sent + 1 == self._first + len(self._kept):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        return self.take() if visit == self._visit else Mail(first=self._sent + 1)
