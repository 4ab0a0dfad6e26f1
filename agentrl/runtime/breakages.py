"""Engines that broke, and when there are too many: replacing them mends the fault of a device, and not
weights that no engine can serve.

Invariant: only breaks count after which nothing was done, so one bad device never ends a run in which
another engine works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agentrl.runtime.failures import FailingEngines

MAX_BREAKS = 3
"""Engines of one seat, one after the other."""


class Breakages:
    def __init__(self) -> None:
        self._breaks: Counter[str] = Counter()

    def progressed(self) -> None:
        """An attempt has ended well, or the engines get other weights."""
        self._breaks.clear()

    def broke(self, worker_id: str, colleagues: Iterable[str], reason: str) -> None:
        """Raises `FailingEngines` when it is the same with all `colleagues`, who serve the same."""
        self._breaks[worker_id] += 1
        concerned = {worker_id, *colleagues}
        if all(self._breaks[name] >= MAX_BREAKS for name in concerned):
            raise FailingEngines(
                f"every engine broke {MAX_BREAKS} times, one process after the other, and no attempt "
                f"ended well between ({', '.join(sorted(concerned))}); the newest error: {reason}"
            )
