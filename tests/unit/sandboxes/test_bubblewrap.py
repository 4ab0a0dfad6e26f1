"""How the bubblewrap backend makes its boxes: decided once, by trying, and said aloud."""

from __future__ import annotations

import logging
import subprocess
from typing import Any

import pytest

from sandboxes import BackendUnavailable, SandboxSpec, bubblewrap, bwrap, zygote
from sandboxes.bubblewrap import BubblewrapBackend
from sandboxes.cgroups import Cgroups


@pytest.fixture
def binary() -> str:
    try:
        return bwrap.working_bwrap()
    except BackendUnavailable as e:
        pytest.skip(str(e))


def test_bwrap_is_tried_without_the_mounts_of_others(
    binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine's come and go, and bwrap fails when one goes that it was about to show."""
    tried: list[list[str]] = []
    run = subprocess.run

    def noting(command: list[str], **kwargs: Any) -> object:
        tried.append(command)
        return run(command, **kwargs)

    monkeypatch.setattr(subprocess, "run", noting)
    assert bwrap.working_bwrap() == binary
    assert "/" not in tried[0]


async def test_where_nothing_can_be_forked_each_box_is_a_bwrap_of_its_own(
    binary: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bubblewrap, "problem_of_forking", lambda bwrap, cgroups: "old kernel")
    with caplog.at_level(logging.WARNING):
        backend = BubblewrapBackend()
    assert "old kernel" in caplog.text
    assert not backend.forks
    notes = " ".join(backend.capabilities().notes)
    assert "number of files is not limited" in notes
    assert "Each box starts a Python of its own" in notes
    async with await backend.create(SandboxSpec()) as box:
        assert (await box.exec(["echo", "well"])).out == b"well\n"
    await backend.close()


def test_a_machine_that_cannot_fork_boxes_is_told_by_trying(
    binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_groups = Cgroups({}, version=1)
    assert zygote.problem_of_forking(binary, no_groups) is None
    assert "said nothing" in str(zygote.problem_of_forking("/bin/false", no_groups))
    started = bwrap.start_bwrap

    def without_privileges(*args: object, options: list[str], **kwargs: object) -> object:
        options = [*options, "--cap-drop", "ALL"]
        return started(*args, options=options, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(zygote, "start_bwrap", without_privileges)
    assert "not permitted" in str(zygote.problem_of_forking(binary, no_groups))


async def test_what_control_groups_cannot_hold_is_held_for_each_process(binary: str) -> None:
    backend = BubblewrapBackend(Cgroups({}, version=1))
    assert not backend.capabilities().memory
    spec = SandboxSpec(memory_bytes=300 * 2**20, pids=50)
    async with await backend.create(spec) as box:
        limits = (await box.exec(["bash", "-c", "ulimit -v; ulimit -u"])).out
    await backend.close()
    assert limits == b"307200\n50\n"
