"""How many boxes there may be at once: first come first served, all of a group or none yet.

Taking a group's boxes one by one would deadlock once several groups each hold a part.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sandboxes.spec import SandboxSpec


class _Wish(NamedTuple):
    num_boxes: int
    memory_bytes: int
    granted: asyncio.Future[None]


class Permits:
    def __init__(self, *, max_boxes: int, max_memory_bytes: float) -> None:
        self._max_boxes = max_boxes
        self._max_memory_bytes = max_memory_bytes
        self._queue: deque[_Wish] = deque()
        self.num_boxes = 0
        self.memory_bytes = 0

    @property
    def num_waiting(self) -> int:
        """Boxes that are waited for."""
        return sum(wish.num_boxes for wish in self._queue)

    def take_now(self, spec: SandboxSpec) -> bool:
        """Without waiting, and never before those who wait."""
        if self._queue or not self._fits(1, spec.memory_bytes):
            return False
        self._add(1, spec.memory_bytes)
        return True

    async def take(self, specs: Sequence[SandboxSpec]) -> None:
        num_boxes, memory_bytes = len(specs), sum(spec.memory_bytes for spec in specs)
        if num_boxes > self._max_boxes or memory_bytes > self._max_memory_bytes:
            raise ValueError(
                f"{num_boxes} boxes with {memory_bytes} bytes of memory are wanted at once, but "
                f"only {self._max_boxes} boxes and {self._max_memory_bytes:.0f} bytes may ever be "
                "in use; raise sandbox.max_open or make groups smaller"
            )
        wish = _Wish(num_boxes, memory_bytes, asyncio.get_running_loop().create_future())
        self._queue.append(wish)
        self._grant()
        try:
            await wish.granted
        except asyncio.CancelledError:
            if wish in self._queue:
                self._queue.remove(wish)
            elif not wish.granted.cancelled():  # granted in the same turn of the event loop
                self._add(-num_boxes, -memory_bytes)
            self._grant()
            raise

    def give_back(self, spec: SandboxSpec) -> None:
        self._add(-1, -spec.memory_bytes)
        self._grant()

    def _grant(self) -> None:
        while self._queue and self._fits(self._queue[0].num_boxes, self._queue[0].memory_bytes):
            wish = self._queue.popleft()
            if not wish.granted.cancelled():
                self._add(wish.num_boxes, wish.memory_bytes)
                wish.granted.set_result(None)

    def _fits(self, num_boxes: int, memory_bytes: int) -> bool:
        return (
            self.num_boxes + num_boxes <= self._max_boxes
            and self.memory_bytes + memory_bytes <= self._max_memory_bytes
        )

    def _add(self, num_boxes: int, memory_bytes: int) -> None:
        self.num_boxes += num_boxes
        self.memory_bytes += memory_bytes
