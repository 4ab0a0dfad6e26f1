"""JSON lines that any value survives, and files of them that any crash survives.

A record must never end a run, so `to_line` takes whatever an environment, a tool or a model comes
up with: numpy scalars and arrays become numbers and lists, NaN and infinity become null, bytes
and lone surrogates become text that shows them escaped, integers beyond 64 bits become their
digits. What JSON can hold comes back equal.

Invariants
- A line exists once its newline is on disk; `read_lines` gives nothing after the last newline.
- `AppendFile` never leaves half a line in the middle of a file: a failed write is cut off again,
  and so is a torn tail that an earlier process left behind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path

import orjson

from agentrl.types import Json

_MAX_DEPTH = 64
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE


def to_line(value: object) -> bytes:
    """One line of JSON, newline included, whatever `value` holds."""
    try:
        return orjson.dumps(value, default=_unwrap, option=_OPTIONS)
    except TypeError:  # a surrogate, a huge integer, too deep: rare, so the slow way
        return orjson.dumps(to_plain(value), option=_OPTIONS)


def to_plain(value: object, depth: int = 0) -> Json:
    """`value` in terms of what every JSON reader can read."""
    if depth > _MAX_DEPTH:
        return f"<nested deeper than {_MAX_DEPTH}>"
    match value:
        case None | bool() | float():
            return value
        case Enum():
            return to_plain(value.value, depth)
        case int():
            return int(value) if value.bit_length() < 64 else _digits(value)
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case Mapping():
            return {str(to_plain(k)): to_plain(v, depth + 1) for k, v in value.items()}
        case list() | tuple() | Set():
            return [to_plain(item, depth + 1) for item in value]
        case _:
            return to_plain(_unwrap(value), depth + 1)


def _unwrap(value: object) -> object:
    """What `value` holds, one layer down; its `repr` when it is none of the things we know."""
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "tolist"):  # arrays and scalars of numpy and torch
        return value.tolist()
    return repr(value)


def _digits(value: int) -> str:
    return str(value) if value.bit_length() < 4096 else f"<integer of {value.bit_length()} bits>"


class AppendFile:
    """A file that only grows, by whole records, written by one thread of one process."""

    def __init__(self, path: Path, *, is_text: bool = True) -> None:
        self._file = path.open("ab", buffering=0)
        self.size = self._file.tell()
        if is_text and self.size:
            self._cut(_end_of_last_line(path, self.size))

    def append(self, data: bytes) -> int:
        """Write `data` and return where it begins."""
        start = self.size
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            self._cut(start)
            raise
        self.size = start + len(data)
        return start

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _cut(self, size: int) -> None:
        os.ftruncate(self._file.fileno(), size)
        self.size = size


def _end_of_last_line(path: Path, size: int, block: int = 1 << 16) -> int:
    with path.open("rb") as file:
        end = size
        while end > 0:
            start = max(0, end - block)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def read_lines(path: Path, start: int = 0) -> Iterator[tuple[int, Json]]:
    """The values of all whole lines from byte `start` on, each with the byte its line ends at.

    A missing file has no lines yet. Going on from the last end reads only what is new.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(start)
        end = start
        for line in file:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield end, orjson.loads(line)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a small file at once: readers see the old one or the new one, never half."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
