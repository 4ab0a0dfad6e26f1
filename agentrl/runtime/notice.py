"""The notice that a process is to end soon: SIGTERM, which clusters send before they take a machine.

Ray's handler of that signal never runs in a process whose main thread is inside Ray, and only that
thread may install another one. `faulthandler` may from any: what it writes when the signal comes
wakes up whoever waits here.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal


class TerminationNotice:
    """One per process; from its making on SIGTERM ends the process no more."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        faulthandler.register(signal.SIGTERM, file=self._writing, all_threads=False)

    async def wait(self) -> None:
        """Return when the signal has come."""
        loop, has_come = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._reading, has_come.set)
        try:
            await has_come.wait()
        finally:
            loop.remove_reader(self._reading)
