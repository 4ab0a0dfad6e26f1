"""Podman's socket that speaks the engine's API, as its own user runs it: root, with runc."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from docker.api import APIClient
from private_engine import remove_engine_folder

from sandboxes import BackendUnavailable, SandboxLost, SandboxSpec, make_backend
from sandboxes.engine.backend import DockerBackend
from sandboxes.engine.connection import Address, Engine
from sandboxes.engine.shell_box import ShellBox
from sandboxes.spec import MIB

pytestmark = [pytest.mark.docker, pytest.mark.slow]

IMAGES = ("agentrl-base", "agentrl-shell")
SPEC = SandboxSpec(memory_bytes=192 * MIB, disk_bytes=32 * MIB, files={"f": "file"})
SETTINGS = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Path]:
    """Its socket, with the images of the usual engine."""
    if os.getuid() != 0 or not all(map(shutil.which, ("podman", "runc", "catatonit"))):
        pytest.skip("needs root, podman, runc and catatonit")
    folder = Path(tempfile.mkdtemp(prefix="agentrl-podman-"))
    (folder / "containers.conf").write_text(SETTINGS)
    storage = ["--root", f"{folder}/images", "--runroot", f"{folder}/state"]
    environment = {**os.environ, "CONTAINERS_CONF": f"{folder}/containers.conf"}
    with (folder / "log").open("wb") as log:
        service = subprocess.Popen(
            ["podman", *storage, "system", "service", "--time=0", f"unix://{folder}/p.sock"],
            cwd=folder,  # conmon leaves a file `oom` where it runs
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        source = APIClient(version="auto", timeout=120)
        with closing(source), closing(connected(folder / "p.sock")) as target:
            for name in IMAGES:
                target.load_image(b"".join(source.get_image(name)))
        yield folder / "p.sock"
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(30)
        subprocess.run(["podman", *storage, "rm", "-af"], env=environment, capture_output=True)
        remove_engine_folder(folder)


def connected(path: Path) -> APIClient:
    """As soon as something answers there."""
    deadline = time.monotonic() + 30
    while True:
        try:
            address = Engine(Address(f"http+unix://{path}")).address
        except BackendUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return APIClient(base_url=address.url, version="auto", timeout=120)


@pytest.mark.parametrize("image", IMAGES)
async def test_boxes_of_podman_are_like_those_of_docker(
    podman: Path, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{podman}")
    # Podman is slow on a busy machine, and a box that takes longer to end a command is given up.
    monkeypatch.setattr("sandboxes.engine.shell_box.ANSWER_GRACE_S", 20.0)
    backend = await asyncio.to_thread(make_backend, "docker", run_id="podman")
    assert isinstance(backend, DockerBackend)
    assert backend.engine.address == Address(f"http+unix://{podman}")
    assert any("number of files" in note for note in backend.capabilities().notes)
    async with await backend.create(replace(SPEC, image=image)) as box:
        assert isinstance(box, ShellBox) == (image != SPEC.image)
        result = await box.exec("cat f -; echo made > g", stdin=b" and stdin")
        assert (result.out, result.err) == (b"file and stdin", b"")
        assert await box.read("g") == b"made\n"
        status = (
            await box.exec("id -u; grep -E 'CapBnd|NoNewPrivs|Seccomp:' /proc/self/status")
        ).out
        assert status.split() == [
            *(b"1000", b"CapBnd:", b"0" * 16, b"NoNewPrivs:", b"1", b"Seccomp:", b"2")
        ]
        assert not (await box.exec("touch /x")).ok
        assert b"No space left" in (await box.exec("dd if=/dev/zero of=x bs=1M count=64")).err
        assert (await box.exec("rm x; setsid sleep 60 & sleep 60", timeout_s=0.5)).timed_out
        greedy = await box.exec("head -c 900000000 /dev/zero | tail -c 800000000 > /dev/null")
        assert (greedy.rc, greedy.oom) == (137, True)
        host = await backend.engine.call(
            "inspect", lambda client: client.inspect_container(box.sandbox_id)["HostConfig"]
        )
        assert host["NetworkMode"] == "none"
        assert (host["Memory"], host["MemorySwap"]) == (SPEC.memory_bytes, SPEC.memory_bytes)
        assert (host["PidsLimit"], host["ReadonlyRootfs"]) == (SPEC.pids, True)
    with pytest.raises(SandboxLost):
        await box.exec("true")
    await backend.close()
    with closing(connected(podman)) as client:
        assert client.containers(all=True) == []
