"""One suite for every backend: each test gets a box of each, and what a backend does not promise
on this machine is skipped by name."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes import BackendUnavailable, Sandbox, SandboxBackend, SandboxSpec, make_backend
from sandboxes.bubblewrap import BubblewrapBackend
from sandboxes.spec import MIB

SPEC = SandboxSpec(
    memory_bytes=192 * MIB, pids=64, disk_bytes=32 * MIB, exec_timeout_s=20, max_output_bytes=4096
)

Promise = Callable[..., None]


@pytest.fixture(
    params=[
        "bubblewrap",
        "bubblewrap-unforked",
        "subprocess",
        pytest.param("docker", marks=pytest.mark.docker),
    ]
)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[SandboxBackend]:
    try:
        if request.param == "bubblewrap-unforked":
            backend: SandboxBackend = BubblewrapBackend(may_fork=False)
        else:
            backend = make_backend(request.param, run_id="conformance")
    except BackendUnavailable as e:
        if request.param == "docker" and os.environ.get("AGENTRL_REQUIRE_DOCKER") == "1":
            raise
        pytest.skip(str(e))
    yield backend
    await backend.close()


@pytest.fixture
def promises(backend: SandboxBackend) -> Promise:
    """`promises("memory")` skips the test where the backend does not enforce that."""

    def check(*limits: str) -> None:
        missing = [name for name in limits if not getattr(backend.capabilities(), name)]
        if missing:
            pytest.skip(f"{backend.name} does not promise {', '.join(missing)} here")

    return check


@pytest.fixture
async def box(backend: SandboxBackend) -> AsyncIterator[Sandbox]:
    async with await backend.create(SPEC) as box:
        yield box


@pytest.fixture
async def neighbour(backend: SandboxBackend) -> AsyncIterator[Sandbox]:
    async with await backend.create(replace(SPEC, env={"NAME": "neighbour"})) as box:
        yield box


async def until(condition: Callable[[], bool], *, timeout_s: float = 20) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # other processes set no event
            await asyncio.sleep(0.02)


@pytest.fixture(scope="session", autouse=True)
def _started_by_nohup() -> None:
    """Whoever starts a worker may ignore signals; nothing in a box may notice."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)


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


@pytest.fixture
def sleepers() -> Sleepers:
    return Sleepers()
