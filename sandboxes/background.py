"""`Background`: a command of a box that runs on while others do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from sandboxes import wire
from sandboxes.boxd import frames
from sandboxes.client import Call
from sandboxes.sandbox import ExecResult

PEEK_TIMEOUT_S = 5.0


class Logs(NamedTuple):
    """What a command has printed so far, head and tail of it."""

    out: bytes
    err: bytes


class Background:
    def __init__(self, call: Call, guard: Callable[[], AbstractContextManager[None]]) -> None:
        self._call = call
        self._guard = guard

    @property
    def is_running(self) -> bool:
        return self._call.last is None

    async def logs(self) -> Logs:
        with self._guard():
            if self.is_running:
                self._call.send(frames.PEEK)
                self._call.set_deadline(PEEK_TIMEOUT_S, "the time for a look")
            kind, payload = await self._call.part()
            self._call.set_deadline(None, "")
        result = _result(kind, payload)
        return Logs(result.out, result.err)

    async def wait(self, timeout_s: float | None = None) -> ExecResult:
        """Its end; `TimeoutError` leaves it running."""
        with self._guard():
            async with asyncio.timeout(timeout_s):
                result = _result(*await self._call.end())
        self._call.close()
        return result

    async def kill(self) -> ExecResult:
        """End it with all that it started."""
        with self._guard():
            if self.is_running:
                self._call.send(frames.KILL)
        return await self.wait()


def _result(kind: int, payload: bytes) -> ExecResult:
    if kind != frames.ERROR:
        return wire.exec_result(payload)
    err = f"could not start: {wire.error(payload)[1]}\n".encode()
    return ExecResult(rc=127, out=b"", err=err, out_bytes=0, err_bytes=len(err))
