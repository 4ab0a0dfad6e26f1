"""boxd's way through folders, on kernels that follow a link when a folder is asked for."""

from __future__ import annotations

import errno
import os
import posix
from pathlib import Path

import pytest

from sandboxes.boxd import files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With `real/` and `outside/`, as the working directory of a kernel that knows no O_NOFOLLOW."""
    really_open = posix.open

    def open_any(path: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return really_open(path, flags & ~os.O_NOFOLLOW, mode, dir_fd=dir_fd)

    for name in ("real", "outside"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(posix, "open", open_any)
    return tmp_path


def test_a_folder_is_passed(folder: Path) -> None:
    os.close(files.open_plain(b"real/deep/f", os.O_WRONLY | os.O_CREAT, 0o644))
    assert (folder / "real/deep/f").exists()


def test_a_link_is_not(folder: Path) -> None:
    (folder / "link").symlink_to("outside")
    with pytest.raises(OSError, match="a link is on the way") as failure:
        files.open_plain(b"link/f", os.O_WRONLY | os.O_CREAT)
    assert failure.value.errno == errno.ELOOP
    assert not list((folder / "outside").iterdir())


def test_a_folder_that_becomes_a_link_meanwhile_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_as_before = posix.open

    def exchange_first(
        path: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        if path == b"real":
            (folder / "real").rmdir()
            (folder / "real").symlink_to("outside")
        return open_as_before(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(posix, "open", exchange_first)
    with pytest.raises(OSError, match="exchanged"):
        files.open_plain(b"real/f", os.O_WRONLY | os.O_CREAT)
    assert not list((folder / "outside").iterdir())
