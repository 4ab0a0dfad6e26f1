"""Time that an attempt is not charged for: it waits for a place, through no doing of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def standing_still(deadline: asyncio.Timeout) -> Iterator[None]:
    """What is left of `deadline` is left afterwards as well. One that has passed stays passed."""
    ends_t = deadline.when()
    if deadline.expired() or ends_t is None:
        yield
        return
    clock = asyncio.get_running_loop().time
    left_s = ends_t - clock()
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(clock() + left_s)
