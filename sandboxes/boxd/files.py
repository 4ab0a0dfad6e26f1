"""Files in and out of a box: plain ones only, and no link on the way.

A relative path starts in the workdir; an absolute one is the box's own and may pass links of the
image (`/bin`), but never end in one. Devices, pipes and sockets are refused before being opened.
"""

import errno
import posix
from collections.abc import Iterator

from sandboxes.boxd.frames import CHUNK, CHUNK_BYTES, END, FILE, MAX_FILES

S_IFMT, S_IFREG, S_IFDIR, S_IFLNK = 0o170000, 0o100000, 0o040000, 0o120000
SAFE = posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
FOLDER = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC


def unsafe(path: bytes, why: str) -> OSError:
    return OSError(errno.ELOOP, why, path)


def open_folder(name: bytes, parent: int, path: bytes, *, make: bool) -> int:
    """`name` in `parent`, the latter closed; `path` decides whether links may be passed.

    What is opened is compared with what was there: gVisor follows a link in spite of O_NOFOLLOW
    when O_DIRECTORY is given too.
    """
    try:
        if make:
            try:  # noqa: SIM105  # contextlib would have to be loaded
                posix.mkdir(name, 0o755, dir_fd=parent)
            except FileExistsError:
                pass
        if path[:1] == b"/":
            return posix.open(name, FOLDER, dir_fd=parent)
        there = posix.stat(name, dir_fd=parent, follow_symlinks=False)
        if there.st_mode & S_IFMT == S_IFLNK:
            raise unsafe(path, "a link is on the way")
        fd = posix.open(name, FOLDER | posix.O_NOFOLLOW, dir_fd=parent)
    finally:
        posix.close(parent)
    opened = posix.fstat(fd)
    if (opened.st_dev, opened.st_ino) != (there.st_dev, there.st_ino):
        posix.close(fd)
        raise unsafe(path, "a folder on the way was exchanged")
    return fd


def open_parent(path: bytes, *, make: bool) -> "tuple[int, bytes]":
    """A descriptor of the folder that holds `path`, and the name in it."""
    parts = [p for p in path.split(b"/") if p not in (b"", b".")]
    if b".." in parts:
        raise unsafe(path, "'..' is on the way")
    fd = posix.open(b"/" if path[:1] == b"/" else b".", FOLDER)
    for part in parts[:-1]:
        fd = open_folder(part, fd, path, make=make)
    return fd, parts[-1] if parts else b"."


def open_plain(path: bytes, flags: int, mode: int = 0) -> int:
    parent, name = open_parent(path, make=bool(flags & posix.O_CREAT))
    try:
        try:
            kind = posix.stat(name, dir_fd=parent, follow_symlinks=False).st_mode & S_IFMT
        except FileNotFoundError:
            kind = S_IFREG
        if kind == S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        if kind != S_IFREG:
            raise unsafe(path, "is not a plain file")
        return posix.open(name, flags | SAFE, mode, dir_fd=parent)
    finally:
        posix.close(parent)


def plain_files(top: bytes) -> "list[bytes]":
    """Paths below `top`, relative to it; links and special files are left out."""
    found, todo = [], [b""]
    while todo:
        here = todo.pop()
        path = top + b"/" + here if here else top
        parent, name = open_parent(path, make=False)
        fd = open_folder(name, parent, path, make=False)
        try:
            with posix.scandir(fd) as entries:
                for entry in entries:
                    below = here + b"/" if here else b""
                    below += entry.name.encode("utf-8", "surrogateescape")
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(below)
                    elif entry.is_file(follow_symlinks=False):
                        found.append(below)
                    if len(found) + len(todo) > MAX_FILES:
                        raise OSError(errno.EFBIG, f"more than {MAX_FILES} files", top)
        finally:
            posix.close(fd)
    return sorted(found)


def outgoing(path: bytes, limit: int, tree: bool) -> "Iterator[tuple[int, bytes]]":
    """Frames (kind, payload) of one file, or of all plain files under a folder."""
    left = limit
    for name in plain_files(path) if tree else [b""]:
        try:
            fd = open_plain(path + b"/" + name if name else path, posix.O_RDONLY)
        except FileNotFoundError:
            if not tree:
                raise
            continue  # gone since it was listed
        try:
            executable = posix.fstat(fd).st_mode & 0o100
            yield FILE, (b"x" if executable else b"-") + name
            while True:
                data = posix.read(fd, CHUNK_BYTES)
                if not data:
                    break
                left -= len(data)
                if left < 0:
                    raise OSError(errno.EFBIG, f"more than {limit} bytes", path)
                yield CHUNK, data
        finally:
            posix.close(fd)
    yield END, b""


class Incoming:
    """Files on their way into the box; after a failure the rest is dropped unread."""

    def __init__(self) -> None:
        self.fd = -1
        self.failure: OSError | None = None

    def take(self, kind: int, payload: bytes) -> None:
        if self.failure is not None:
            return
        try:
            if kind == CHUNK:
                self.write(payload)
            else:
                self.close()
            if kind == FILE:
                flags = posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC
                self.fd = open_plain(payload[1:], flags, 0o755 if payload[:1] == b"x" else 0o644)
        except OSError as e:
            self.failure = e
            self.close()

    def write(self, data: bytes) -> None:
        while data:
            data = data[posix.write(self.fd, data) :]

    def close(self) -> None:
        if self.fd >= 0:
            posix.close(self.fd)
            self.fd = -1
