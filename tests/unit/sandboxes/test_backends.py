"""The choice of a backend, and what it says when there is none."""

from __future__ import annotations

import errno
import socket

import pytest

from sandboxes import BackendUnavailable, SandboxError, SandboxSpec, backends, doctor, make_backend


def test_subprocess_is_only_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> None:
        raise BackendUnavailable("no namespaces; turn them on")

    monkeypatch.setattr(backends, "BubblewrapBackend", unavailable)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(
        BackendUnavailable,
        match=r"no engine at /nowhere.*no namespaces; turn them on.*backend: subprocess",
    ):
        make_backend("auto")
    assert make_backend("subprocess").name == "subprocess"


def test_what_is_required_and_missing_is_an_error_that_says_so() -> None:
    with pytest.raises(
        BackendUnavailable, match=r"does not enforce memory, disk.*Nothing is isolated"
    ):
        make_backend("subprocess", require=("memory", "disk"))


async def test_an_allow_list_is_refused_not_half_kept() -> None:
    backend = make_backend("subprocess")
    with pytest.raises(ValueError, match="cannot hold a network allow-list"):
        await backend.create(SandboxSpec(network=("example.com",)))
    await backend.close()


async def test_a_process_without_descriptors_is_not_the_specs_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    backend = make_backend("subprocess")
    monkeypatch.setattr(socket, "socketpair", exhausted)
    with pytest.raises(SandboxError, match=r"could not start a subprocess box: .*Too many open"):
        await backend.create(SandboxSpec())
    monkeypatch.undo()
    await backend.close()


async def test_a_kernel_of_its_own_is_refused_where_there_is_none() -> None:
    """Or a box that should have one would share the host's, and nobody would know."""
    backend = make_backend("subprocess")
    with pytest.raises(ValueError, match="no runtimes, got runtime='runsc'"):
        await backend.create(SandboxSpec(runtime="runsc"))
    await backend.close()


async def test_the_doctor_tells_what_does_not_make_such_boxes() -> None:
    by_name = {report.name: report for report in await doctor(SandboxSpec(runtime="no-such"))}
    assert "no runtimes" in (by_name["subprocess"].problem or "")
    assert by_name["subprocess"].capabilities is not None
