"""What the tests of boxes share: a small box, what a backend promises, and a look from outside."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path

from sandboxes import SandboxSpec
from sandboxes.spec import MIB

SPEC = SandboxSpec(
    memory_bytes=192 * MIB, pids=64, disk_bytes=32 * MIB, exec_timeout_s=20, max_output_bytes=4096
)

Promise = Callable[..., None]


async def until(condition: Callable[[], bool], *, timeout_s: float = 20) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # other processes set no event
            await asyncio.sleep(0.02)


class Sleepers:
    """Processes of this machine that can be told from all others by how long they sleep.

    Boxes are seen from outside, through the host's /proc, so a process cannot hide from the count.
    """

    def __init__(self) -> None:
        self.seconds = f"9{secrets.randbelow(10**8):08}"

    @property
    def command(self) -> str:
        return f"sleep {self.seconds}"

    def pids(self) -> list[int]:
        wanted = b"\0" + self.seconds.encode() + b"\0"
        folders = Path("/proc").glob("[0-9]*")
        return [int(folder.name) for folder in folders if wanted in _cmdline(folder)]

    def count(self) -> int:
        return len(self.pids())


def _cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
