"""Whatever ends a box or its worker, nothing of the box is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from observing import SPEC, Sleepers, docker, until

from sandboxes import (
    BackendName,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxLost,
    make_backend,
)
from sandboxes.engine.backend import DockerBackend

WORKER = """
import asyncio, signal, sys
from sandboxes import SandboxSpec, make_backend

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

async def main():
    backend = make_backend(sys.argv[1])
    boxes = [await backend.create(SandboxSpec(runtime=sys.argv[3] or None)) for _ in range(3)]
    print("ready", flush=True)
    await asyncio.gather(*(box.exec(f"setsid sleep {sys.argv[2]} & sleep {sys.argv[2]}") for box in boxes))

asyncio.run(main())
"""


def leftovers() -> set[str]:
    """Folders, control groups, containers and volumes that belong to boxes of anybody."""
    temporary = Path(tempfile.gettempdir()).glob("agentrl-box-*")
    groups = (
        Path(folder, name) for folder, names, _ in os.walk("/sys/fs/cgroup") for name in names
    )
    files = [*temporary, *(p for p in groups if p.name.startswith("agentrl-"))]
    return {str(path) for path in files} | set(in_engine())


def in_engine() -> Iterator[str]:
    if shutil.which("docker"):
        for what in (["ps", "-a", "--format", "{{.Names}}"], ["volume", "ls", "-q"]):
            listed = subprocess.run(["docker", *what], capture_output=True, text=True)
            yield from listed.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_boxes_die_with_their_worker(
    backend: SandboxBackend, neighbour: Sandbox, sleepers: Sleepers, how: signal.Signals
) -> None:
    command = [sys.executable, "-c", WORKER, backend.name, sleepers.seconds, SPEC.runtime or ""]
    worker = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"ready\n"
        await until(lambda: sleepers.count() == 7)  # six, and the worker with its argument
    finally:
        worker.send_signal(how)
        await asyncio.wait_for(worker.communicate(), 30)
    await until(lambda: sleepers.count() == 0)
    assert (await neighbour.exec('echo "$NAME"')).out == b"neighbour\n"
    next_worker = make_backend(cast(BackendName, backend.name))  # sweeps up
    if isinstance(next_worker, DockerBackend):
        await next_worker.reap()
    await next_worker.close()
    await until(lambda: not [name for name in leftovers() if f"-{worker.pid}-" in name])


async def test_a_closed_box_leaves_nothing(backend: SandboxBackend, sleepers: Sleepers) -> None:
    box = await backend.create(SPEC)
    await box.exec(f"{sleepers.command} > /dev/null 2>&1 &")
    await until(lambda: sleepers.count() == 1)
    await box.close()
    await box.close()
    assert sleepers.count() == 0
    assert not [name for name in leftovers() if box.sandbox_id in name]
    with pytest.raises(SandboxLost):
        await box.exec(["true"])


async def test_a_creation_that_fails_leaves_nothing(backend: SandboxBackend) -> None:
    before = leftovers()
    with pytest.raises(ValueError, match="relative"):
        await backend.create(replace(SPEC, files={"/absolute": "x"}))
    assert mine(leftovers() - before) == set()


def mine(names: set[str]) -> set[str]:
    """Other test runs may share this machine."""
    return {name for name in names if f"-{os.getpid()}-" in name}


@pytest.mark.slow
async def test_a_creation_cancelled_anywhere_leaves_nothing(backend: SandboxBackend) -> None:
    for delay_ms in (0, 0.5, 1, 2, 4, 6, 8, 10, 12, 15, 20, 30):
        creation = asyncio.create_task(backend.create(SPEC))
        await asyncio.sleep(delay_ms / 1000)
        creation.cancel()
        for result in await asyncio.gather(creation, return_exceptions=True):
            if not isinstance(result, BaseException):
                await result.close()
            else:
                assert isinstance(result, asyncio.CancelledError | SandboxError)
    await backend.close()
    assert mine(leftovers()) == set()
    assert not [thread for thread in threading.enumerate() if "agentrl-box" in thread.name]


async def test_closing_the_backend_ends_open_boxes(
    backend: SandboxBackend, sleepers: Sleepers
) -> None:
    box = await backend.create(SPEC)
    await box.exec(f"{sleepers.command} > /dev/null 2>&1 &")
    await backend.close()
    assert sleepers.count() == 0
    assert mine(leftovers()) == set()


async def test_a_box_that_dies_is_lost_with_its_name(
    backend: SandboxBackend, neighbour: Sandbox, sleepers: Sleepers
) -> None:
    box = await backend.create(SPEC)
    call = asyncio.create_task(box.exec(f"{sleepers.command}; true"))
    await until(lambda: sleepers.count() == 1)
    if SPEC.runtime:
        docker("kill", box.sandbox_id)
    else:
        os.kill(daemon_of(sleepers.pids()[0]), signal.SIGKILL)
    with pytest.raises(SandboxLost, match=box.sandbox_id):
        await call
    assert not await box.alive()
    with pytest.raises(SandboxLost, match=box.sandbox_id):
        await box.read("x")
    await box.close()
    if backend.name == "subprocess":  # which says so in its notes
        os.kill(sleepers.pids()[0], signal.SIGKILL)
    await until(lambda: sleepers.count() == 0)
    assert await neighbour.alive()


def daemon_of(pid: int) -> int:
    """The boxd above a process of a box, seen from outside: the init of the box's processes.

    Where a box has none, it is above the sleep's shell and its supervisor.
    """
    line = []
    while pid > 1:
        pid = int(status_of(pid)["PPid"])
        line.append(pid)
    inits = [pid for pid in line if status_of(pid)["NSpid"].split()[1:][-1:] == ["1"]]
    return inits[0] if inits else line[2]


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@pytest.mark.slow
async def test_churn_leaves_descriptors_threads_and_memory_flat(backend: SandboxBackend) -> None:
    async def churn(num: int, at_once: int) -> None:
        for _ in range(num):
            boxes = await asyncio.gather(*(backend.create(SPEC) for _ in range(at_once)))
            await asyncio.gather(*(box.exec(["true"]) for box in boxes))
            await asyncio.gather(*(box.close() for box in boxes))

    await churn(4, at_once=10)
    gc.collect()
    before = num_descriptors()
    rss = rss_bytes()
    await churn(20, at_once=4)
    gc.collect()
    assert num_descriptors() <= before
    assert threading.active_count() < 12
    assert rss_bytes() - rss < 4 * 1024 * 1024
    assert mine(leftovers()) == set()


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
