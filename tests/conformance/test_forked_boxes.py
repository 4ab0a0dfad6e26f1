"""What is special to boxes that are forks of one process: it may die, and they share nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from observing import SPEC, Promise, Sleepers, until

from sandboxes import Sandbox, SandboxBackend, SandboxError, SandboxLost, SandboxSpec
from sandboxes.boxd.namespaces import KERNEL_SETTINGS
from sandboxes.bubblewrap import BubblewrapBackend
from sandboxes.spec import MIB

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


@pytest.fixture
def forks(backend: SandboxBackend) -> None:
    if not (isinstance(backend, BubblewrapBackend) and backend.forks):
        pytest.skip("its boxes are not forks of one process")


def children_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def zygotes() -> Iterator[int]:
    """The children of our bwraps; ours is the thread that started them, whichever it was."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name.endswith("(bwrap") and int(rest.split()[1]) == os.getpid():
            yield from children_of(int(stat.parent.name))


@pytest.mark.parametrize("namespace", NAMESPACES)
async def test_every_namespace_is_the_box_s_own(
    backend: SandboxBackend, box: Sandbox, neighbour: Sandbox, namespace: str
) -> None:
    if backend.name != "bubblewrap":
        pytest.skip("how much containers share is up to their engine")
    command = ["readlink", f"/proc/self/ns/{namespace}"]
    seen = [(await box.exec(command)).out, (await neighbour.exec(command)).out]
    seen.append(os.readlink(f"/proc/self/ns/{namespace}").encode() + b"\n")
    assert len(set(seen)) == 3


async def test_terminals_are_the_box_s_own(
    box: Sandbox, neighbour: Sandbox, promises: Promise
) -> None:
    promises("network")
    script = (
        "import os, time; os.openpty(); print(os.listdir('/dev/pts'), flush=True); time.sleep(20)"
    )
    command = await neighbour.spawn(["python3", "-c", script])
    async with asyncio.timeout(20):
        while b"'0'" not in (await command.logs()).out:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.02)
    assert (await box.exec(["ls", "/dev/pts"])).out == b"ptmx\n"
    await command.kill()


async def test_settings_of_the_kernel_cannot_be_written(box: Sandbox, promises: Promise) -> None:
    promises("network")
    for name in KERNEL_SETTINGS:
        found = await box.exec(f"find /proc/{name} -type f -writable 2> /dev/null | head -3")
        for path in found.out.decode().split():
            assert not (await box.exec(f"cat {path} > {path}")).ok, path


@pytest.mark.usefixtures("forks")
async def test_a_killed_zygote_costs_its_boxes_and_no_more(
    backend: SandboxBackend, sleepers: Sleepers
) -> None:
    box = await backend.create(SPEC)
    call = asyncio.create_task(box.exec(f"setsid {sleepers.command} & {sleepers.command}"))
    await until(lambda: sleepers.count() == 2)
    for pid in zygotes():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxLost, match=box.sandbox_id):
        await call
    await until(lambda: sleepers.count() == 0)
    await box.close()
    async with await backend.create(SPEC) as another:
        assert (await another.exec(["echo", "well"])).out == b"well\n"


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
async def test_boxes_wanted_of_a_dying_zygote_are_typed_errors(backend: SandboxBackend) -> None:
    await (await backend.create(SPEC)).close()
    for delay_ms in (0, 0.5, 1, 2, 3, 5, 8):
        wanted = [asyncio.create_task(backend.create(SPEC)) for _ in range(4)]
        await asyncio.sleep(delay_ms / 1000)
        for pid in zygotes():
            os.kill(pid, signal.SIGKILL)
        for result in await asyncio.gather(*wanted, return_exceptions=True):
            if isinstance(result, BaseException):
                assert isinstance(result, SandboxError)
            else:
                await result.close()
    await (await backend.create(SPEC)).close()


@pytest.mark.usefixtures("forks")
async def test_closed_boxes_leave_the_zygote_no_children(backend: SandboxBackend) -> None:
    boxes = await asyncio.gather(*(backend.create(SPEC) for _ in range(5)))
    (zygote,) = zygotes()
    assert len(children_of(zygote)) == 5
    await asyncio.gather(*(box.close() for box in boxes))
    assert children_of(zygote) == []


@pytest.mark.usefixtures("forks")
async def test_many_workdirs_do_not_leave_many_zygotes(backend: SandboxBackend) -> None:
    for n in range(8):
        async with await backend.create(replace(SPEC, workdir=f"/app/{n}")) as box:
            assert (await box.exec("pwd; echo ~")).out == (f"/app/{n}\n" * 2).encode()
    assert len(list(zygotes())) <= 5
    specs = [replace(SPEC, workdir=f"/app/{n % 7}") for n in range(21)]
    for box in await asyncio.gather(*(backend.create(spec) for spec in specs)):
        await box.close()
    await backend.close()
    assert list(zygotes()) == []


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    "spec", [replace(SPEC, user=2**32 - 1), replace(SPEC, workdir="/usr/none")]
)
async def test_a_box_that_cannot_be_made_says_why(
    backend: SandboxBackend, spec: SandboxSpec
) -> None:
    with pytest.raises(SandboxError, match=r"Invalid argument|Read-only|Can't mkdir"):
        await backend.create(spec)


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("folder", [".", "/tmp", "/dev/shm"])
async def test_the_number_of_files_is_limited(box: Sandbox, folder: str) -> None:
    script = f"import os\nfor n in range(10**5): os.close(os.open('{folder}/%d' % n, os.O_CREAT))"
    result = await box.exec(["python3", "-c", script])
    assert b"No space left" in result.err
    assert (await box.exec(f"rm -r {folder}/*; touch {folder}/x && echo usable")).out == b"usable\n"


@pytest.mark.usefixtures("forks")
async def test_a_box_of_almost_no_disk_is_not_one_without_a_limit(backend: SandboxBackend) -> None:
    async with await backend.create(replace(SPEC, disk_bytes=1)) as box:
        result = await box.exec(f"head -c {MIB} /dev/zero > fill")
        assert b"No space left" in result.err
