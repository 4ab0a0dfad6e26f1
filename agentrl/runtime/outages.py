"""Attempts are begun more and more slowly while boxes or engines fail, so that an outage costs few.

An attempt that ends in `infra_error` begins an outage, and one that was begun since and ends
otherwise is the proof that it is over. Between them what is tried again is held back, and all new
work too once an attempt of the outage itself has failed. After a pause one attempt goes ahead; when
another pause has passed in which it did not fail, the others follow. Each failure doubles the pause.

Invariants: attempts are begun in the order in which they came, and one that is held is begun after
two of the longest pauses at the latest, unless the attempts before it fail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import structlog

from agentrl.record.journal import JournaledAttempt
from agentrl.rollout.attempt import Attempt
from agentrl.runtime.failures import message_of
from agentrl.types import Outcome, Trajectory

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
POLL_S = 0.25


class OutageGate:
    """`submit` and `ended` are called as things happen; `run()` lets through what was held."""

    def __init__(
        self,
        begin: Callable[[Attempt, JournaledAttempt | None], None],
        *,
        clock: Callable[[], float],
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        self._begin = begin
        self._clock = clock
        self._longest_pause_s = longest_pause_s
        self._held: deque[tuple[Attempt, JournaledAttempt | None]] = deque()
        self._num_failures = 0
        """One after the other, each of an attempt that was begun after the one before."""
        self._begun: dict[str, int] = {}
        """Attempts that were begun since the first of those failures, and how many there were then.
        One that ends well ends the outage."""
        self._is_closed = False
        self._has_probe = False
        """One attempt was let through a closed gate."""
        self._next_s = 0.0
        """When a closed gate lets something through."""
        self._num_ended = 0
        self._error = ""

    @property
    def num_held(self) -> int:
        return len(self._held)

    def submit(self, attempt: Attempt, past: JournaledAttempt | None = None) -> None:
        """Begin an attempt, now or when its turn comes."""
        is_again = attempt.attempt > 0
        if self._is_closed and (is_again or self._num_failures > 1):
            self._held.append((attempt, past))
        else:
            self._let_through(attempt, past)

    def ended(self, trajectory: Trajectory) -> None:
        """To be told of every attempt before what follows from it is submitted."""
        begun_at = self._begun.pop(trajectory.trajectory_id, 0)
        if trajectory.outcome is not Outcome.INFRA_ERROR:
            if begun_at:
                self._end()
            return
        self._num_ended += 1
        self._error = message_of(trajectory.error or "")
        if begun_at == self._num_failures:
            self._fail()

    def tick(self) -> None:
        """Let through what is due."""
        if not self._is_closed or self._clock() < self._next_s:
            return
        if self._has_probe:
            self._open()
        elif self._held:
            self._has_probe = True
            self._next_s = self._clock() + self._pause_s
            self._let_through(*self._held.popleft())

    async def run(self) -> NoReturn:
        while True:
            await asyncio.sleep(POLL_S)
            self.tick()

    def waits(self) -> list[str]:
        """What is held back and why, in a line; none while nothing is."""
        if not self._held:
            return []
        left_s = max(0.0, self._next_s - self._clock())
        return [
            f"boxes, engines or judges to work again: {self._num_ended} attempts ended in "
            f"infra_error, {len(self._held)} are held back, the next one for {left_s:.0f} s more; "
            f"the newest error: {self._error}"
        ]

    @property
    def _pause_s(self) -> float:
        doubled = FIRST_PAUSE_S * 2.0 ** min(self._num_failures - 1, 30)
        return min(self._longest_pause_s, doubled)

    def _fail(self) -> None:
        self._num_failures += 1
        self._is_closed, self._has_probe = True, False
        self._next_s = self._clock() + self._pause_s
        if self._num_failures > 1:  # a single one is no outage
            log.warning(
                "boxes, engines or judges fail; attempts are held back",
                pause_s=self._pause_s,
                infra_errors=self._num_ended,
                error=self._error,
            )

    def _end(self) -> None:
        if self._num_failures > 1:
            log.info("attempts are not held back any more", infra_errors=self._num_ended)
        self._num_failures = self._num_ended = 0
        self._open()
        self._begun.clear()

    def _open(self) -> None:
        self._is_closed = self._has_probe = False
        held, self._held = self._held, deque()
        for attempt, past in held:
            self._let_through(attempt, past)

    def _let_through(self, attempt: Attempt, past: JournaledAttempt | None) -> None:
        if self._num_failures:
            self._begun[attempt.trajectory_id] = self._num_failures
        self._begin(attempt, past)
