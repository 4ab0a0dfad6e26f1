"""`agentrl sandbox`: what a killed worker left is seen and removed, what others have stays."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from docker.api import APIClient
from typer.testing import CliRunner, Result

from agentrl.cli.main import app
from sandboxes import BackendUnavailable, SandboxError, build_base
from sandboxes.engine.connection import Address, find_engine

WORKER = """
import asyncio, sys
from sandboxes import SandboxSpec, make_backend

async def main():
    backend = make_backend(sys.argv[1], run_id=sys.argv[2])
    boxes = [await backend.create(SandboxSpec()) for _ in range(2)]
    if sys.argv[1] == "docker":  # and one in the middle of its birth
        host = backend.new_host(SandboxSpec())
        await host._create(await backend.images.get("agentrl-base"))
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def sandbox(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["sandbox", *arguments], terminal_width=200)


@contextmanager
def worker(backend: str, run_id: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WORKER, backend, run_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def engine() -> Iterator[APIClient]:
    try:
        found = find_engine()
    except BackendUnavailable as e:
        if os.environ.get("AGENTRL_REQUIRE_DOCKER") == "1":
            raise
        pytest.skip(str(e))
    asyncio.run(found.close())
    with closing(APIClient(base_url=found.address.url, version="auto")) as client:
        yield client


def of_run(engine: APIClient, run_id: str) -> list[str]:
    return [box["Id"] for box in engine.containers(all=True, filters=_label(run_id))]


def _label(run_id: str) -> dict[str, str]:
    return {"label": f"agentrl.run={run_id}"}


@pytest.mark.slow
@pytest.mark.docker
def test_gc_removes_what_a_killed_worker_left_in_the_engine_and_nothing_else(
    engine: APIClient,
) -> None:
    mark = secrets.token_hex(4)
    with worker("docker", f"other-{mark}"), worker("docker", f"killed-{mark}") as killed:
        assert len(of_run(engine, f"killed-{mark}")) == 3
        assert len(of_run(engine, f"other-{mark}")) == 3
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        # Started boxes end with their worker by themselves; one that is half made does not.
        assert {row[-1] for row in rows_of("list", f"killed-{mark}")} == {"yes"}
        assert {row[-1] for row in rows_of("list", f"other-{mark}")} == {"no"}
        assert rows_of("gc", f"killed-{mark}", "--dry-run")
        assert of_run(engine, f"killed-{mark}"), "a dry run removes nothing"
        assert rows_of("gc", f"killed-{mark}")
        assert not rows_of("gc", f"other-{mark}")
        wait_until_gone(engine, f"killed-{mark}")
        assert len(of_run(engine, f"other-{mark}")) == 3
    assert rows_of("gc", f"other-{mark}")
    wait_until_gone(engine, f"other-{mark}")


def wait_until_gone(engine: APIClient, run_id: str) -> None:
    """The engine still lists for a moment what it is removing."""
    deadline = time.monotonic() + 30
    while of_run(engine, run_id):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rows_of(command: str, run_id: str, *options: str) -> list[list[str]]:
    """Of the boxes of one run; other runs may share this machine."""
    result = sandbox(command, *options)
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.output.splitlines() if f" {run_id} " in line]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["bubblewrap", "subprocess"])
def test_gc_removes_what_a_killed_worker_left_on_this_machine(backend: str) -> None:
    with worker(backend, "any") as other, worker(backend, "any") as killed:
        ours = rows_with_pid("list", killed.pid)
        if backend == "bubblewrap" and not ours:
            pytest.skip("boxes have no control groups here, so there is nothing to find")
        assert [row[1] for row in ours] == [backend] * 2
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert [row[-1] for row in rows_with_pid("list", killed.pid)] == ["yes"] * 2
        assert len(rows_with_pid("gc", killed.pid)) == 2
        assert rows_with_pid("list", killed.pid) == []
        assert len(rows_with_pid("list", other.pid)) == 2
    rows_with_pid("gc", other.pid)


def rows_with_pid(command: str, pid: int) -> list[list[str]]:
    result = sandbox(command)
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.output.splitlines() if line.startswith(f"{pid}-")]


def stopped(folder: Path) -> str:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "d.sock"))
    return f"unix://{folder}/d.sock"


def missing(folder: Path) -> str:
    return f"unix://{folder}/none.sock"


@pytest.mark.parametrize(("address", "mend"), [(stopped, "start it"), (missing, "install Docker")])
@pytest.mark.parametrize("command", ["list", "gc"])
def test_an_engine_that_cannot_be_asked_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    address: Callable[[Path], str],
    mend: str,
    command: str,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address(tmp_path))
    result = sandbox(command)
    assert result.exit_code == 1
    assert "boxes of an engine were not seen" in result.output
    assert mend in result.output


def test_no_engine_at_all_is_nothing_to_tell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    nowhere = Address(f"http+unix://{tmp_path}/none.sock")
    monkeypatch.setattr("sandboxes.engine.connection._addresses", lambda: iter([nowhere]))
    assert sandbox("list").exit_code == 0


def test_an_image_is_not_built_without_an_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", stopped(tmp_path))
    result = sandbox("build")
    assert result.exit_code == 2
    assert "start it" in result.output


@pytest.mark.docker
def test_a_build_that_fails_or_makes_nothing_of_use_is_an_error(
    engine: APIClient, tmp_path: Path
) -> None:
    script = tmp_path / "build.sh"
    script.write_text('#!/bin/sh\n[ "$2" = packages ]\n')
    script.chmod(0o755)
    with pytest.raises(SandboxError, match=r"could not build 'no-such-tag' \(exit code 1\)"):
        asyncio.run(build_base("no-such-tag", "dockerfile", script=script))
    with pytest.raises(SandboxError, match="no image 'no-such-tag'"):
        asyncio.run(build_base("no-such-tag", "packages", script=script))
    with pytest.raises(SandboxError, match="from a checkout"):
        asyncio.run(build_base("no-such-tag", script=tmp_path / "missing.sh"))
