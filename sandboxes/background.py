"""`Background`: a command of a box that runs on while others do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from sandboxes import wire
from sandboxes.boxd import frames
from sandboxes.client import Call, Deadline
from sandboxes.sandbox import ExecResult

ANSWER_TIMEOUT_S = 5.0


class Logs(NamedTuple):
    """What a command has printed so far, head and tail of it."""

    out: bytes
    err: bytes


class Background:
    def __init__(self, call: Call, guard: Callable[[], AbstractContextManager[None]]) -> None:
        self._call = call
        self._guard = guard
        self._looking = asyncio.Lock()
        self._is_asked = False
        """The box owes an answer to a look."""

    @property
    def is_running(self) -> bool:
        return self._call.last is None

    async def logs(self) -> Logs:
        """What it has printed by now. May be cancelled. Raises `SandboxLost`."""
        async with self._looking:
            with self._guard():
                if self._is_asked:  # by a caller who is gone; the answer is of that time
                    await self._answer()
                if self.is_running:
                    self._call.send(frames.PEEK)
                    self._is_asked = True
                result = _result(*await self._answer())
        return Logs(result.out, result.err)

    async def _answer(self) -> tuple[int, bytes]:
        answer = await self._call.part(Deadline.after(ANSWER_TIMEOUT_S, "the time for a look"))
        self._is_asked = False
        return answer

    async def wait(self, timeout_s: float | None = None) -> ExecResult:
        """Its end; `TimeoutError` leaves it running. Raises `SandboxLost`."""
        async with asyncio.timeout(timeout_s):
            return await self._end()

    async def kill(self) -> ExecResult:
        """End it with all that it started. Raises `SandboxLost`, also when the box does not say so."""
        with self._guard():
            if self.is_running:
                self._call.send(frames.KILL)
        return await self._end(Deadline.after(ANSWER_TIMEOUT_S, "the time for a kill"))

    async def _end(self, deadline: Deadline | None = None) -> ExecResult:
        with self._guard():
            result = _result(*await self._call.end(deadline))
        self._call.close()
        return result


def _result(kind: int, payload: bytes) -> ExecResult:
    if kind != frames.ERROR:
        return wire.exec_result(payload)
    err = f"could not start: {wire.error(payload)[1]}\n".encode()
    return ExecResult(rc=127, out=b"", err=err, out_bytes=0, err_bytes=len(err))
