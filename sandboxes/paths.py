"""What may go into a box or come out of one as a file: checked here before anything is touched.

boxd checks again on its side (links inside the box); here it is about names, kinds and amounts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sandboxes.boxd.frames import MAX_FILES
from sandboxes.sandbox import UnsafePath

MAX_UPLOAD_BYTES = 256 * 1024 * 1024


class BoxFile(NamedTuple):
    path: str
    data: bytes
    executable: bool = False


def box_path(path: str, workdir: str) -> str:
    """`path` as boxd wants it: relative to the workdir wherever it lies under it."""
    _refuse_odd_names(path)
    pure = PurePosixPath(path)
    return str(pure.relative_to(workdir) if pure.is_relative_to(workdir) else pure)


def relative_path(path: str) -> str:
    """A name inside a tree: relative, not empty and without `..`."""
    _refuse_odd_names(path)
    pure = PurePosixPath(path)
    if pure.is_absolute() or not pure.parts:
        raise UnsafePath(f"{path!r} is not a relative path to a file")
    return str(pure)


def _refuse_odd_names(path: str) -> None:
    if "\0" in path or ".." in PurePosixPath(path).parts:
        raise UnsafePath(f"{path!r} holds '..' or a NUL")
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UnsafePath(f"{path!r} holds half a character") from error


def files_of_mapping(files: Mapping[str, str | bytes]) -> list[BoxFile]:
    found = [
        BoxFile(relative_path(path), data.encode() if isinstance(data, str) else bytes(data))
        for path, data in files.items()
    ]
    _refuse_too_much(len(found), sum(len(file.data) for file in found))
    return found


def files_of_tree(top: Path) -> list[BoxFile]:
    """Contents of a local folder. Anything but plain files and folders is refused by name."""
    plain: list[tuple[Path, os.stat_result]] = []
    for folder, folders, names in os.walk(top, onerror=_raise):
        for name in folders + names:
            path = Path(folder, name)
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                plain.append((path, status))
            elif not stat.S_ISDIR(status.st_mode):
                raise UnsafePath(
                    f"{path} is a link, device, pipe or socket; only plain files go in"
                )
        _refuse_too_much(len(plain), sum(status.st_size for _, status in plain))
    return [
        BoxFile(path.relative_to(top).as_posix(), _read_plain(path), bool(status.st_mode & 0o100))
        for path, status in plain
    ]


def _read_plain(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        data = file.read(MAX_UPLOAD_BYTES + 1)
    _refuse_too_much(1, len(data))
    return data


def _refuse_too_much(num_files: int, num_bytes: int) -> None:
    if num_files > MAX_FILES or num_bytes > MAX_UPLOAD_BYTES:
        raise ValueError(
            f"an upload of {num_files} files and {num_bytes} bytes; "
            f"at most {MAX_FILES} files and {MAX_UPLOAD_BYTES} bytes go into a box at once"
        )


def _raise(error: OSError) -> None:
    raise error
