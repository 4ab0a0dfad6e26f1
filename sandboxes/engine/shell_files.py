"""Files in and out of a box that has a shell, `tar` and `head`, but no boxd.

The engine's own archive requests see neither the box's tmpfs nor, with a read-only root, accept
anything, so files go through commands. Scripts end with an errno as their exit code; the same is
refused as by boxd: links on the way and at the end of a path, and whatever is no plain file.
"""

from __future__ import annotations

import errno
import io
import tarfile
from collections.abc import Sequence

from sandboxes.boxd.frames import MAX_FILES
from sandboxes.paths import BoxFile

_WALK = """
walk() {
  case $1 in /*) at=; rest=${1#/}; links=1;; *) at=.; rest=$1; links=;; esac
  while :; do
    case $rest in */*) part=${rest%%/*}; rest=${rest#*/};; *) return;; esac
    [ "$part" ] || continue
    at=$at/$part
    [ -h "$at" ] && [ -z "$links" ] && exit 40
    [ -e "$at" ] || return 0
    [ -d "$at" ] || exit 20
  done
}
"""
READ = (
    _WALK
    + """
case $2 in /*) file=$2;; *) file=./$2;; esac
walk "$2"
[ -h "$file" ] && exit 40
[ -e "$file" ] || exit 2
[ -d "$file" ] && exit 21
[ -f "$file" ] || exit 40
[ -r "$file" ] || exit 13
exec head -c "$1" "$file"
"""
)
"""Arguments: bytes at most, path. Prints the file."""

IS_EXECUTABLE = '[ -x "$1" ] || exit 1'

LIST = (
    _WALK
    + """
case $2 in /*) folder=$2;; *) folder=./$2;; esac
walk "$2"
[ -h "$folder" ] && exit 40
[ -e "$folder" ] || exit 2
[ -d "$folder" ] || exit 20
cd "$folder" || exit 13
command -v tar >/dev/null && command -v head >/dev/null || exit 127
tar -cf - . | head -c "$1"
"""
)
"""Arguments: bytes at most, path. Prints a tar of the folder."""

WRITE = (
    _WALK
    + """
base=$1; shift
for path; do
  walk "$path"
  case $path in /*) ;; *) path=./$path;; esac
  [ -h "$path" ] && exit 40
  [ -d "$path" ] && exit 21
  if [ -e "$path" ] && ! [ -f "$path" ]; then exit 40; fi
done
exec tar -xf - -C "$base"
"""
)
"""Arguments: folder to unpack in, the paths; a tar of them on stdin."""

_REASONS = {
    b"No space left": errno.ENOSPC,
    b"Permission denied": errno.EACCES,
    b"Read-only file system": errno.EROFS,
    b"ermission": errno.EPERM,
}
_TAR_BYTES_A_FILE = 2048


def packed(files: Sequence[BoxFile], user: int) -> bytes:
    """A tar that a box's user may unpack."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in files:
            member = tarfile.TarInfo(file.path.lstrip("/"))
            member.size = len(file.data)
            member.mode = 0o755 if file.executable else 0o644
            member.uid = member.gid = user
            archive.addfile(member, io.BytesIO(file.data))
    return buffer.getvalue()


def tar_bytes(limit: int) -> int:
    """How long a tar may be that holds no more than is allowed."""
    return limit + _TAR_BYTES_A_FILE * MAX_FILES


def unpacked(data: bytes, limit: int, path: str) -> list[BoxFile]:
    """The plain files of a tar from a box, which may be anything; `ValueError` when it is no tar."""
    files: list[BoxFile] = []
    left = limit
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for number, member in enumerate(archive):
                if member.isreg() and not member.issparse():
                    left -= max(0, member.size)
                    if left < 0:
                        raise OSError(errno.EFBIG, f"more than {limit} bytes", path)
                    content = archive.extractfile(member)
                    assert content is not None
                    name = member.name.removeprefix("./")
                    files.append(BoxFile(name, content.read(), bool(member.mode & 0o100)))
                if number > MAX_FILES:
                    raise OSError(errno.EFBIG, f"more than {MAX_FILES} files", path)
    except (tarfile.TarError, EOFError, OverflowError, RecursionError) as e:
        if len(data) >= tar_bytes(limit):
            raise OSError(errno.EFBIG, f"more than {limit} bytes", path) from e
        raise ValueError(f"a folder came as something that is no tar: {e}") from e
    return sorted(files)


def reason_of(rc: int, err: bytes) -> tuple[int, str]:
    """errno and text of a script that failed."""
    text = err.decode("utf-8", "replace").strip()
    for words, code in _REASONS.items():
        if words in err:
            return code, text
    if rc == errno.ELOOP:
        return rc, "a link is on the way, or it is not a plain file"
    return (rc, "") if rc in (2, 13, 20, 21) else (errno.EIO, text)
