"""Whoever waits for a box of a zygote that ends, and does not end well."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxes import SandboxError
from sandboxes.family import Family
from sandboxes.zygote import Zygote


class StuckZygote(Zygote):
    """It hears of boxes and makes none; killed, it does not end."""

    def __init__(self) -> None:
        self.control, self.its_end = socket.socketpair()
        self.control.setblocking(False)

    def ask(self, box: int, request: bytes, fds: Sequence[int]) -> None:
        pass

    def end(self) -> str:
        self.control.close()
        raise OSError(errno.EBUSY, "process 7 was killed and does not end")


class ClosedJustNow:
    """A pipe that another thread closes after it was looked at."""

    closed = False

    def fileno(self) -> int:
        raise ValueError("I/O operation on closed file")


def test_a_zygote_that_is_ended_meanwhile_has_no_last_words() -> None:
    zygote = StuckZygote()
    with zygote.control, zygote.its_end:
        zygote._process = SimpleNamespace(stderr=ClosedJustNow())  # type: ignore[assignment]
        assert zygote.last_words() == ""


async def in_thread(call: Callable[[], None]) -> None:
    await asyncio.to_thread(call)


async def test_nobody_waits_for_a_box_of_a_zygote_that_does_not_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    zygote: Any = StuckZygote()
    family = Family(zygote, in_thread)
    asked = asyncio.create_task(family.fork(b"", ()))
    await asyncio.sleep(0)
    with caplog.at_level(logging.WARNING):
        await family.end()
    async with asyncio.timeout(20):
        with pytest.raises(SandboxError, match="does not end"):
            await asked
    assert "does not end" in caplog.text
    zygote.its_end.close()
