"""What the tests of boxes share: a small box, what a backend promises, and a look from outside.

With AGENTRL_BOX_RUNTIME the boxes of the docker backend get that OCI runtime, `pytest -m docker`
leaves out the backends that have none.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from sandboxes import BackendUnavailable, SandboxSpec
from sandboxes.engine.backend import DockerBackend
from sandboxes.spec import MIB

SPEC = SandboxSpec(
    memory_bytes=192 * MIB,
    pids=64,
    disk_bytes=32 * MIB,
    exec_timeout_s=20,
    max_output_bytes=4096,
    runtime=os.environ.get("AGENTRL_BOX_RUNTIME"),
)

Promise = Callable[..., None]
Kind = TypeVar("Kind", bound=DockerBackend)


@asynccontextmanager
async def docker_backend(kind: type[Kind]) -> AsyncIterator[Kind]:
    """Skips the test where no engine is, unless one is demanded."""
    try:
        backend = await asyncio.to_thread(kind, run_id="conformance")
    except BackendUnavailable as e:
        if os.environ.get("AGENTRL_REQUIRE_DOCKER") == "1":
            raise
        pytest.skip(str(e))
    try:
        yield backend
    finally:
        await backend.close()


async def until(condition: Callable[[], bool], *, timeout_s: float = 20) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # other processes set no event
            await asyncio.sleep(0.02)


class Sleepers:
    """Processes of this machine that can be told from all others by how long they sleep.

    Boxes are seen from outside, through the host's /proc, so a process cannot hide from the count.
    Those of a kernel of their own are not there: the engine is asked to look into each box too.
    """

    def __init__(self) -> None:
        self.seconds = f"9{secrets.randbelow(10**8):08}"

    @property
    def command(self) -> str:
        return f"sleep {self.seconds}"

    @property
    def _argument(self) -> bytes:
        return b"\0" + self.seconds.encode() + b"\0"

    def pids(self) -> list[int]:
        folders = Path("/proc").glob("[0-9]*")
        return [int(folder.name) for folder in folders if self._argument in _cmdline(folder)]

    def count(self) -> int:
        inside = sum(_cmdlines_in(box).count(self._argument) for box in _boxes_of_own_kernels())
        return len(self.pids()) + inside


def _cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _boxes_of_own_kernels() -> list[str]:
    return docker("ps", "-q", "--filter", "label=agentrl").decode().split() if SPEC.runtime else []


def _cmdlines_in(box: str) -> bytes:
    """Nothing once it is gone."""
    return docker("exec", box, "sh", "-c", "cat /proc/[0-9]*/cmdline")


def docker(*command: str) -> bytes:
    return subprocess.run(["docker", *command], capture_output=True, timeout=60).stdout
