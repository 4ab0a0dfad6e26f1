"""The files that hold trajectories: text lines and token columns, a pair a chunk.

An open chunk takes lines and tokens as they come, so a reader sees a trajectory at once and a
lost process loses none that was written. At its limit a chunk is sealed: the tokens are rewritten
as safetensors columns, written aside and renamed, and no file of it changes any more.

Invariant: offsets are in tokens and the same before and after sealing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from agentrl.record.codec import TOKEN, Fate, encode, token_columns
from agentrl.record.index import index_line
from agentrl.record.jsonl import AppendFile, to_line, write_whole
from agentrl.record.layout import RunLayout
from agentrl.types import Trajectory

CHUNK_BYTES = 32 * 1024 * 1024
"""Text or tokens of one chunk, before it is sealed."""

Columns = dict[str, NDArray[Any]]


class ChunkWriter:
    """Appends trajectories to the open chunk of one run."""

    def __init__(self, layout: RunLayout, *, launch: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._layout = layout
        self._launch = launch
        self._chunk_bytes = chunk_bytes
        for chunk in layout.open_chunks():
            seal(layout, chunk)
        self._index = AppendFile(layout.index)
        self._open(layout.next_chunk())

    def append(self, trajectory: Trajectory, fate: Fate) -> None:
        tokens = token_columns(trajectory)
        token_start = self._tokens.append(tokens.tobytes()) // TOKEN.itemsize
        line = {**encode(trajectory, fate, tokens), "token_start": token_start}
        text = to_line(line)
        row = index_line(
            line,
            launch=self._launch,
            chunk=self._chunk,
            line_start=self._text.append(text),
            line_bytes=len(text),
        )
        self._index.append(to_line(row))

    @property
    def is_full(self) -> bool:
        return max(self._text.size, self._tokens.size) >= self._chunk_bytes

    def roll(self) -> None:
        """Go on in a new chunk and seal the old one. Should sealing fail, the old chunk stays
        readable as it is, and the next launch seals it."""
        full, text, tokens = self._chunk, self._text, self._tokens
        self._open(full + 1)
        _close(text, tokens)
        seal(self._layout, full)

    def sync(self) -> None:
        for file in (self._tokens, self._text, self._index):
            file.sync()

    def close(self) -> None:
        _close(self._text, self._tokens, self._index)
        seal(self._layout, self._chunk)

    def _open(self, chunk: int) -> None:
        text = AppendFile(self._layout.chunk_text(chunk))
        self._tokens = AppendFile(self._layout.chunk_open_columns(chunk), is_text=False)
        self._text, self._chunk = text, chunk


def _close(*files: AppendFile) -> None:
    for file in files:
        file.sync()
        file.close()


def seal(layout: RunLayout, chunk: int) -> None:
    """Turn the tokens of an open chunk into columns; what a torn write left over is cut off."""
    source = layout.chunk_open_columns(chunk)
    size = source.stat().st_size
    tokens = np.fromfile(source, dtype=TOKEN, count=size // TOKEN.itemsize)
    if len(tokens):
        fields = TOKEN.names or ()
        columns = {name: np.ascontiguousarray(tokens[name]) for name in fields}
        write_columns(layout.chunk_columns(chunk), columns)
    elif layout.chunk_text(chunk).exists() and not layout.chunk_text(chunk).stat().st_size:
        layout.chunk_text(chunk).unlink()
    source.unlink()


def write_columns(path: Path, columns: Columns, metadata: Mapping[str, str] | None = None) -> None:
    """Arrays into one safetensors file, aside and renamed."""
    write_whole(path, save(columns, metadata=dict(metadata or {})))


def read_tokens(layout: RunLayout, chunk: int, start: int, length: int) -> Columns:
    """A slice of the token columns of a chunk, open or sealed."""
    if length == 0:
        empty = np.zeros(0, dtype=TOKEN)
        return {name: empty[name] for name in TOKEN.names or ()}
    sealed = layout.chunk_columns(chunk)
    if not sealed.exists():
        try:
            with layout.chunk_open_columns(chunk).open("rb") as file:
                file.seek(start * TOKEN.itemsize)
                tokens = np.fromfile(file, dtype=TOKEN, count=length)
            return {name: np.ascontiguousarray(tokens[name]) for name in TOKEN.names or ()}
        except FileNotFoundError:
            assert sealed.exists(), f"chunk {chunk} of {layout.root} has lost its token columns"
    with safe_open(sealed, framework="numpy") as file:
        return {name: file.get_slice(name)[start : start + length] for name in TOKEN.names or ()}
