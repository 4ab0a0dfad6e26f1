"""Three ways an engine can be out of reach, and the mend of each."""

from __future__ import annotations

import gc
import socket
import warnings
from pathlib import Path

import pytest

from sandboxes import BackendUnavailable
from sandboxes.engine.connection import Address, Engine, find_engine


def test_a_missing_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(BackendUnavailable, match=r"there is no engine at .*install Docker"):
        find_engine()


def test_a_stopped_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "d.sock"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/d.sock")
    with pytest.raises(BackendUnavailable, match=r"answers at .*start it"):
        find_engine()


def test_a_stopped_engine_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(BackendUnavailable, match=r"answers at 127\.0\.0\.1:1 .*start it"):
        find_engine()


def test_a_forbidden_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/d.sock")
    with pytest.raises(BackendUnavailable, match=r"may not use the Docker engine.*group"):
        find_engine()


def test_an_engine_over_ssh_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://somewhere")
    with pytest.raises(BackendUnavailable, match="ssh -L"):
        find_engine()


def test_what_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr("sandboxes.engine.connection.CALL_TIMEOUT_S", 1)
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
        with pytest.raises(BackendUnavailable, match="is no Docker engine"):
            find_engine()


def test_an_engine_that_is_gone_keeps_no_socket_open(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(BackendUnavailable, match="No such file"):
            Engine(Address(f"http+unix://{tmp_path}/d.sock"))
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
