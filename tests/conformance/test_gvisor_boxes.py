"""What is different in boxes with a kernel of their own: runs where AGENTRL_BOX_RUNTIME names one."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from observing import SPEC, docker_backend

from sandboxes import Sandbox, SandboxLost
from sandboxes.engine.backend import DockerBackend

pytestmark = pytest.mark.docker


@pytest.fixture
async def backend() -> AsyncIterator[DockerBackend]:
    if SPEC.runtime is None:
        pytest.skip("AGENTRL_BOX_RUNTIME names no runtime such as runsc")
    async with docker_backend(DockerBackend) as backend:
        if not backend.capabilities(SPEC).kernel_isolation:
            pytest.skip(f"{SPEC.runtime} is not gVisor")
        yield backend


async def test_the_kernel_is_not_the_hosts(box: Sandbox) -> None:
    assert (await box.exec(["uname", "-r"])).text.strip() != platform.release()


async def test_as_many_processes_as_asked_for_do_run(box: Sandbox) -> None:
    num = SPEC.pids - 8  # boxd, its supervisor, the shell and pgrep are processes too
    result = await box.exec(f"for i in $(seq {num}); do sleep 9 & done; pgrep -c sleep")
    assert int(result.out) == num


async def test_cpu_time(backend: DockerBackend) -> None:
    """As the host sees it: the box's own kernel counts waiting for a CPU as well."""

    async def cpu_s() -> float:
        stats: dict[str, Any] = await backend.engine.call(
            "look at a box", lambda client: client.stats(box.sandbox_id, stream=False)
        )
        return float(stats["cpu_stats"]["cpu_usage"]["total_usage"]) / 1e9

    async with await backend.create(replace(SPEC, cpus=0.25)) as box:
        before = await cpu_s()
        await box.exec("timeout 2 sh -c 'while :; do :; done'; true")
        assert await cpu_s() - before < 1.2


MEMORY_HOG = f"bytearray({4 * SPEC.memory_bytes})"
PROCESS_HOG = "import os, time\nfor _ in range(2000): os.fork() or time.sleep(99)\ntime.sleep(99)"


@pytest.mark.parametrize("hog", [MEMORY_HOG, PROCESS_HOG])
async def test_a_box_that_meets_a_limit_is_lost_and_says_why(
    box: Sandbox, neighbour: Sandbox, hog: str
) -> None:
    with pytest.raises(SandboxLost, match="gVisor, where a box ends as a whole"):
        await box.exec(["python3", "-c", hog], timeout_s=20)
    assert not await box.alive()
    assert (await neighbour.exec(["echo", "well"])).out == b"well\n"
