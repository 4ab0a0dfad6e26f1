"""Boxes of which something is left on the machine: whose fault that is, and what it may hide."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes import Sandbox, SandboxBackend, SandboxError, SandboxSpec, make_backend
from sandboxes.process import PREFIX


@pytest.fixture
async def backend() -> AsyncIterator[SandboxBackend]:
    backend = make_backend("subprocess")
    yield backend
    await backend.close()


@pytest.fixture
async def box(backend: SandboxBackend) -> Sandbox:
    return await backend.create(SandboxSpec())


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders of boxes, none of which can be removed."""
    folders: list[Path] = []
    remove = shutil.rmtree

    def refuse(folder: Path, **options: object) -> None:
        if not folder.name.startswith(PREFIX):
            return remove(folder)
        folders.append(folder)
        remove(folder)
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(folder))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    return folders


async def test_a_box_that_cannot_be_removed_is_no_fault_of_a_file(
    box: Sandbox, left: list[Path]
) -> None:
    with pytest.raises(SandboxError, match=f"{box.sandbox_id} .*Directory not empty"):
        await box.close()
    assert len(left) == 1


async def test_a_file_that_cannot_be_in_a_box_is_told_though_the_box_cannot_be_removed(
    backend: SandboxBackend, left: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NotADirectoryError):
        await backend.create(SandboxSpec(files={"a": "", "a/b": ""}))
    assert len(left) == 1
    assert "could not delete box" in caplog.text


async def test_a_backend_ends_all_boxes_though_one_cannot_be_removed(
    backend: SandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = [await backend.create(SandboxSpec()) for _ in range(3)]
    remove, gone, has_failed = shutil.rmtree, [], threading.Event()

    def refuse_one(folder: Path) -> None:
        if folder.name.endswith(boxes[0].sandbox_id):
            remove(folder)  # other tests look for what is left over
            has_failed.set()
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(folder))
        has_failed.wait(10)
        time.sleep(0.2)
        remove(folder)
        gone.append(folder)

    monkeypatch.setattr(shutil, "rmtree", refuse_one)
    with pytest.raises(SandboxError, match=f"{boxes[0].sandbox_id} .*Directory not empty"):
        await backend.close()
    assert len(gone) == 2


async def test_what_was_verified_stands_though_the_fresh_box_cannot_be_removed(
    box: Sandbox, left: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Else an environment would take it for a file of the policy's, and give reward 0."""
    caplog.set_level(logging.ERROR)
    async with box.verifier() as fresh:
        verified = await fresh.exec("exit 3")
    assert verified.rc == 3
    assert len(left) == 1
    assert fresh.sandbox_id in caplog.text
    with pytest.raises(SandboxError):
        await box.close()


async def test_a_process_that_does_not_end_when_killed_leaves_no_folder_and_is_told_of(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that waits for a disk."""
    folder = Path(tempfile.gettempdir(), PREFIX + box.sandbox_id)
    assert await asyncio.to_thread(folder.exists)
    waited_for: list[subprocess.Popen[bytes]] = []

    def never_ends(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waited_for.append(process)
        raise subprocess.TimeoutExpired(process.args, timeout or 0)

    monkeypatch.setattr(subprocess.Popen, "wait", never_ends)
    with pytest.raises(SandboxError, match=f"{box.sandbox_id} .*was killed and does not end"):
        await box.close()
    assert not await asyncio.to_thread(folder.exists)
    monkeypatch.undo()
    await asyncio.to_thread(waited_for[0].wait)
