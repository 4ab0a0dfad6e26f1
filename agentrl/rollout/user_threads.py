"""Threads for the plain methods of users, which may block for as long as they like.

Each call has a thread of its own. A pool would make calls wait for each other, and that time would
count against them; one that is shared with the library would let an environment hold up the
library; and a thread whose method never returns would be missing for good. Such a method is
named in the log, and its thread ends with the process.

Invariant: at most `MAX_LOST` calls that nobody waits for any more are still running. Another call
is refused then, with the names of those.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import structlog

log = structlog.get_logger(__name__)

MAX_LOST = 1024
"""Threads are cheap while they wait, but a process cannot have any number of them."""
GRACE_S = 10.0
"""For a method that is only slow; then it is named, once."""


class TooManyLost(RuntimeError):
    """The text says which methods never returned, and what to do."""


class LostCalls:
    """Calls that nobody waits for any more, and that have not returned."""

    def __init__(self) -> None:
        self._running: dict[Future[Any], str] = {}
        self._named: set[str] = set()

    def names(self) -> list[str]:
        return list(self._running.values())

    def add(self, name: str, call: Future[Any]) -> None:
        self._running[call] = name
        call.add_done_callback(lambda ended: self._running.pop(ended, None))
        asyncio.get_running_loop().call_later(GRACE_S, self._look, name, call)

    def _look(self, name: str, call: Future[Any]) -> None:
        if call.done() or name in self._named:
            return
        self._named.add(name)
        log.warning(
            "nobody waits for a plain method any more, and it goes on in its thread; give what "
            "blocks in it a time-out of its own",
            method=name,
        )


_lost = LostCalls()
"""Of this process."""


async def in_thread(function: Callable[[], Any], name: str) -> Any:
    """What `function` returns or raises. Raises `TooManyLost`.

    A caller who is cancelled is gone at once; the function runs on.
    """
    if len(lost := _lost.names()) >= MAX_LOST:
        often = Counter(lost).most_common(3)
        counts = ", ".join(f"{method} {times} times" for method, times in often)
        raise TooManyLost(
            f"{len(lost)} calls of plain methods never returned ({counts}), so no other one is "
            "begun; give what blocks in them a time-out of its own, or make them `async def`"
        )
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(function)
        except BaseException as error:  # noqa: BLE001 - handed on to whoever waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=work, name=f"user {name}", daemon=True).start()
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if not future.done():
            _lost.add(name, future)
        raise
