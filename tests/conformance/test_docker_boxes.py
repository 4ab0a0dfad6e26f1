"""What only an engine can tell: how a box was asked for, and whose boxes are swept up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from docker.api import APIClient
from observing import SPEC, docker_backend

from sandboxes import Sandbox, SandboxError
from sandboxes.engine.backend import DockerBackend
from sandboxes.engine.container import LABEL, remove
from sandboxes.ownership import Owner, this_process

pytestmark = pytest.mark.docker


@pytest.fixture
async def engine_backend() -> AsyncIterator[DockerBackend]:
    async with docker_backend(DockerBackend) as backend:
        yield backend


async def test_a_box_is_asked_for_without_any_right(engine_backend: DockerBackend) -> None:
    async with await engine_backend.create(SPEC) as box:
        details: dict[str, Any] = await engine_backend.engine.call(
            "inspect", lambda client: client.inspect_container(box.sandbox_id)
        )
        status = (await box.exec("grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status")).text
    host, config = details["HostConfig"], details["Config"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert not host["Privileged"]
    assert not host["Binds"]
    assert [mount for mount in details["Mounts"] if mount["Type"] != "tmpfs"] == []
    assert (host["Memory"], host["MemorySwap"]) == (SPEC.memory_bytes, SPEC.memory_bytes)
    assert host["NanoCpus"] == int(SPEC.cpus * 1e9)
    assert host["Runtime"] == (SPEC.runtime or "runc")
    assert host["ReadonlyRootfs"]
    assert host["AutoRemove"]
    assert host["LogConfig"]["Type"] == "none"
    assert host["IpcMode"] == "private"
    assert {(u["Name"], u["Hard"]) for u in host["Ulimits"]} == {("nofile", 4096), ("core", 0)}
    assert config["User"] == "1000:1000"
    assert not [name for name in config["Env"] if "proxy" in name.lower()]
    assert "CapEff:\t0000000000000000" in status
    assert "CapBnd:\t0000000000000000" in status
    if engine_backend.capabilities(SPEC).kernel_isolation:
        return  # which does not show the rest, and counts its own threads as processes
    assert host["PidsLimit"] == SPEC.pids
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


async def test_only_boxes_of_the_dead_are_swept_up(engine_backend: DockerBackend) -> None:
    mine = this_process()
    owners = {
        "dead": str(replace(mine, pid=2**22 + 1)),
        "reused-pid": str(replace(mine, started=1)),
        "other-boot": str(replace(mine, boot="another")),
        "alive": str(mine),
        "elsewhere": str(Owner(host="elsewhere", boot="b", pid=1, started=1)),
    }
    leases = dict.fromkeys(owners, "9999999999") | {"expired": "1"}
    owners["expired"] = owners["elsewhere"]

    owners["unreadable"] = "somebody"

    def plant(client: APIClient) -> None:
        for name, owner in owners.items():
            labels = {LABEL: "1", f"{LABEL}.owner": owner, f"{LABEL}.lease": leases.get(name, "")}
            client.create_container(SPEC.image, "true", name=f"planted-{name}", labels=labels)

    try:
        await engine_backend.engine.call("plant", plant)
        swept = {name for name in await engine_backend.reap() if name.startswith("planted-")}
        assert swept == {f"planted-{n}" for n in ("dead", "reused-pid", "other-boot", "expired")}
    finally:
        for name in owners:
            await remove(engine_backend.engine, f"planted-{name}")


async def test_an_own_box_that_was_given_up_is_swept_up(engine_backend: DockerBackend) -> None:
    """Such as one whose creation timed out and succeeded later."""
    box = await engine_backend.create(SPEC)
    del engine_backend.boxes[box.sandbox_id]
    assert await engine_backend.reap() == [box.sandbox_id]
    engine_backend.boxes[box.sandbox_id] = box
    assert not await box.alive()


async def test_a_box_that_the_engine_removes_by_itself_is_gone_once_closed(
    engine_backend: DockerBackend,
) -> None:
    """It does so when a box's program ends, and refuses to be asked for the same meanwhile."""

    async def end(box: Sandbox) -> list[Any]:
        def listed(client: APIClient) -> list[Any]:
            return list(client.containers(all=True, filters={"name": box.sandbox_id}))

        await engine_backend.engine.call("kill", lambda client: client.kill(box.sandbox_id))
        await box.close()
        return await engine_backend.engine.call("list", listed)

    boxes = await asyncio.gather(*(engine_backend.create(SPEC) for _ in range(8)))
    assert await asyncio.gather(*map(end, boxes)) == [[]] * 8


async def test_an_image_that_is_not_there_says_what_to_do(engine_backend: DockerBackend) -> None:
    with pytest.raises(SandboxError, match="no image 'no-such-image'"):
        await asyncio.wait_for(engine_backend.create(replace(SPEC, image="no-such-image")), 120)
    assert engine_backend.boxes == {}


async def test_a_runtime_that_is_not_there_is_a_clear_error(engine_backend: DockerBackend) -> None:
    with pytest.raises(SandboxError, match=r"no runtime 'no-such' \(it has: .*runc.*daemon.json"):
        await engine_backend.create(replace(SPEC, runtime="no-such"))
    assert engine_backend.boxes == {}
