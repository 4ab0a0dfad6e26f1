"""`Session`: a shell that stays, with its own folder, variables and functions.

The end of each script and its exit code come over a descriptor of their own, which the commands
of the script do not have, so nothing that they print can be taken for it.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Self

from sandboxes import wire
from sandboxes.boxd import frames
from sandboxes.boxd.supervisor import TURN_FD
from sandboxes.client import Call, Deadline
from sandboxes.sandbox import ExecResult

ANSWER_GRACE_S = 1.8


class Session:
    def __init__(
        self, call: Call, guard: Callable[[], AbstractContextManager[None]], timeout_s: float
    ) -> None:
        self._call = call
        self._guard = guard
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """False once the shell has exited, or was killed because a script took too long."""
        return self._call.last is None and not self._call.is_closed

    async def run(self, script: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run a script in the shell. At its deadline the whole session is killed."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        wire.check_timeout(timeout_s)
        line = f"eval {shlex.quote(script)} </dev/null {TURN_FD}>&-; echo $? >&{TURN_FD}\n"
        try:
            request = wire.run_request(line, timeout_s)
        except wire.Unrunnable as error:
            return wire.not_run(126, str(error))
        async with self._turn:
            if not self.is_open:
                raise ValueError("the session's shell has ended; open another session")
            with self._guard():
                deadline = Deadline.after(timeout_s + ANSWER_GRACE_S, "a script's time-out")
                self._call.send(frames.RUN, request)
                try:
                    kind, payload = await self._call.part(deadline)
                except asyncio.CancelledError:
                    await self.close()  # or the next script would get this one's answer
                    raise
        if kind == frames.ERROR:
            raise OSError(*wire.error(payload))
        return wire.exec_result(payload)

    async def close(self) -> None:
        self._call.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
