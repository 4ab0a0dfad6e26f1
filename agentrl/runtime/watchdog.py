"""Names every wait of a run, and ends a run that stands still instead of letting it hang.

Whoever waits does so under a name; whoever gets something done says so. When nothing was done for
`stall_timeout_s`, the run ends with `StalledRun`, which lists the oldest waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import NoReturn

from agentrl.runtime.failures import StalledRun


class Watchdog:
    """One per run. `details` adds waits that other processes know of (the oldest attempts)."""

    def __init__(
        self,
        *,
        stall_timeout_s: float,
        clock: Callable[[], float],
        details: Callable[[], Awaitable[list[str]]],
    ) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._details = details
        self._waits: dict[int, tuple[str, float]] = {}
        self._ids = count()
        self._last_progress = clock()

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        wait_id = next(self._ids)
        self._waits[wait_id] = (name, self._clock())
        try:
            yield
        finally:
            del self._waits[wait_id]

    def progressed(self) -> None:
        self._last_progress = self._clock()

    @property
    def oldest_wait_s(self) -> float:
        return self._clock() - min(
            (since for _, since in self._waits.values()), default=self._clock()
        )

    def oldest(self, num_waits: int = 5) -> list[str]:
        """The oldest waits, one readable line each."""
        now = self._clock()
        waits = sorted(self._waits.values(), key=lambda wait: wait[1])
        return [f"{name}, for {now - since:.0f} s" for name, since in waits[:num_waits]]

    async def watch(self) -> NoReturn:
        """Never returns; raises `StalledRun`."""
        while True:
            still_s = self._clock() - self._last_progress
            if still_s >= self._stall_timeout_s:
                raise StalledRun(await self._report(still_s))
            await asyncio.sleep(min(1.0, self._stall_timeout_s - still_s))

    async def _report(self, still_s: float) -> str:
        try:
            async with asyncio.timeout(5):
                details = await self._details()
        except TimeoutError:
            details = ["(no word from the workers)"]
        waits = "\n  ".join([*self.oldest(), *details]) or "(nothing is registered as waiting)"
        return (
            f"nothing moved for {still_s:.0f} s (runtime.stall_timeout_s); waiting for:\n  {waits}"
        )
