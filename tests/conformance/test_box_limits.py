"""Greedy commands meet their limit, are told so, and their neighbours do not notice."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest
from observing import SPEC, Promise, Sleepers, until

from sandboxes import Sandbox, SandboxBackend, SandboxLost
from sandboxes.spec import MIB

FORK_BOMB = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
FILLER = """
import os, time
while True:
    try: os.fork() or time.sleep(999)
    except OSError: time.sleep(0.005)
"""


async def test_memory_of_one_process(box: Sandbox, promises: Promise) -> None:
    promises("memory", "outlives_commands")
    result = await box.exec(["python3", "-c", f"bytearray({4 * SPEC.memory_bytes})"])
    assert (result.rc, result.oom, result.timed_out) == (137, True, False)
    assert (await box.exec(["echo", "usable"])).out == b"usable\n"
    assert not (await box.exec(["false"])).oom


@pytest.mark.slow
async def test_memory_of_many_processes_is_one_sum(box: Sandbox, promises: Promise) -> None:
    promises("memory", "outlives_commands")
    holder = "python3 -c 'import time; x = bytearray(60 << 20); time.sleep(4)' & "
    result = await box.exec(holder * 8 + "wait; exit 9")
    assert b"Killed" in result.err or result.oom
    assert (await box.exec(["echo", "usable"])).out == b"usable\n"


async def test_memory_of_one_process_without_control_groups(
    box: Sandbox, promises: Promise
) -> None:
    """The weaker limit that every backend has whose boxes outlive it."""
    promises("outlives_commands")
    result = await box.exec(["python3", "-c", f"bytearray({4 * SPEC.memory_bytes})"])
    assert not result.ok


async def test_processes(box: Sandbox, promises: Promise) -> None:
    promises("pids", "outlives_commands")
    result = await box.exec(
        "for i in $(seq 200); do sleep 5 & done 2>/dev/null; pgrep -c sleep; exit 3"
    )
    running = int(result.out.split()[-1]) if result.out else 0
    assert running < SPEC.pids


@pytest.mark.slow
async def test_a_fork_bomb_ends_with_its_time_out_or_its_box(
    backend: SandboxBackend, box: Sandbox, neighbour: Sandbox, promises: Promise
) -> None:
    """A box whose bomb leaves it no time to answer on a busy machine is lost, and says so."""
    promises("pids", "cpus")

    bomb = asyncio.create_task(box.exec(["python3", "-c", FORK_BOMB], timeout_s=3))
    await asyncio.sleep(1)
    for _ in range(10):
        assert (await neighbour.exec(["echo", "well"])).out == b"well\n"
    if backend.capabilities(SPEC).outlives_commands:
        assert not bomb.done()
    try:
        async with asyncio.timeout(30):
            result = await bomb
    except SandboxLost:
        assert not await box.alive()
        return
    assert result.timed_out
    left = await box.exec("ls -d /proc/[0-9]* | wc -l")
    assert int(left.out) < 8


async def test_a_box_full_of_processes_is_a_typed_error(
    box: Sandbox, sleepers: Sleepers, promises: Promise
) -> None:
    promises("pids", "outlives_commands")
    await box.exec(["sh", "-c", f"python3 -c '{FILLER}' {sleepers.seconds} > /dev/null 2>&1 &"])
    await until(lambda: sleepers.count() > SPEC.pids - 4)
    await asyncio.sleep(0.5)
    with pytest.raises(SandboxLost, match="cannot start another process"):
        await box.exec(["true"])
    await box.close()
    assert sleepers.count() == 0


@pytest.mark.parametrize("folder", [".", "/tmp", "/dev/shm"])
async def test_disk(box: Sandbox, promises: Promise, folder: str) -> None:
    promises("disk")
    result = await box.exec(f"head -c 100M /dev/zero > {folder}/fill; stat -c %s {folder}/fill")
    assert b"No space left" in result.err
    assert int(result.out) <= 64 * MIB
    assert (await box.exec(f"rm {folder}/fill; echo usable")).out == b"usable\n"


async def test_uploads_meet_the_disk_limit(box: Sandbox, promises: Promise) -> None:
    promises("disk")
    with pytest.raises(OSError, match="No space left"):
        await box.write("fill", bytes(SPEC.disk_bytes + 1))
    assert (await box.exec(["echo", "usable"])).out == b"usable\n"


@pytest.mark.parametrize("folder", ["/", "/dev", "/etc", "/usr", "/run", "/proc"])
async def test_nothing_else_is_writable(box: Sandbox, promises: Promise, folder: str) -> None:
    promises("disk")
    assert not (await box.exec(f"touch {folder}/x")).ok


@pytest.mark.slow
async def test_a_million_files_end_in_a_typed_result(box: Sandbox, promises: Promise) -> None:
    promises("memory", "disk")
    script = "import os\nfor n in range(10**6): os.close(os.open(str(n), os.O_CREAT))"
    with contextlib.suppress(SandboxLost):
        assert not (await box.exec(["python3", "-c", script], timeout_s=15)).ok


@pytest.mark.slow
async def test_cpu_time(backend: SandboxBackend, promises: Promise) -> None:
    promises("cpus")
    if backend.capabilities(SPEC).kernel_isolation:
        pytest.skip("measured in the box, which a kernel of its own does otherwise")
    async with await backend.create(replace(SPEC, cpus=0.25)) as box:
        result = await box.exec("timeout 2 sh -c 'while :; do :; done'; true", timeout_s=20)
    assert result.usage is not None
    assert result.usage.cpu_seconds < 0.25 * 2 + 0.3
