"""Simulated time: what will happen when, in one order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Agenda:
    """Actions by time; those of one instant happen in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.t = 0.0
        self._order = 0
        self._actions: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def __bool__(self) -> bool:
        return bool(self._actions)

    def at(self, t: float, action: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heapq.heappush(self._actions, (t, self._order, action, args))

    def now(self, action: Callable[..., None], *args: Any) -> None:
        """Within this instant, after what is scheduled for it already."""
        self.at(self.t, action, *args)

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        self.at(self.t + seconds, action, *args)

    def instant(self) -> None:
        """Go on to the next point in time and do all that happens there."""
        self.t = self._actions[0][0]
        while self._actions and self._actions[0][0] == self.t:
            _, _, action, args = heapq.heappop(self._actions)
            action(*args)
