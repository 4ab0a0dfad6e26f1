"""Files as a box sends them: whatever it sends, no more is kept than was asked for."""

from __future__ import annotations

from sandboxes.boxd import frames
from sandboxes.paths import BoxFile

MAX_PATH_BYTES = 4096
"""Of a file on average; a single one may be longer."""


class Download:
    """Is fed frames until the last one. `ValueError` for what nobody has asked for."""

    def __init__(self, *, limit: int, max_files: int) -> None:
        self._limit = limit
        self._max_files = max_files
        self._names: list[tuple[str, bool]] = []
        self._contents: list[bytes] = []
        self._content = bytearray()
        """Of the last file; one buffer, because chunks may be empty and as many as one likes."""
        self._left = limit
        self._left_for_names = max_files * MAX_PATH_BYTES

    def feed(self, kind: int, payload: bytes) -> None:
        if kind == frames.CHUNK:
            self._on_chunk(payload)
        elif kind == frames.FILE:
            self._on_file(payload)
        else:
            raise ValueError(f"a frame of kind {kind} in a download")

    def _on_chunk(self, payload: bytes) -> None:
        self._left -= len(payload)
        if self._left < 0:
            raise ValueError(f"more than the {self._limit} bytes that were asked for")
        self._content += payload

    def _on_file(self, payload: bytes) -> None:
        self._end_file()
        self._left_for_names -= len(payload)
        if len(self._names) == self._max_files or self._left_for_names < 0:
            raise ValueError(f"more than the {self._max_files} files that were asked for")
        name = payload[1:].decode("utf-8", "surrogateescape")
        self._names.append((name, payload[:1] == b"x"))

    def _end_file(self) -> None:
        if self._names:
            self._contents.append(bytes(self._content))
        self._content.clear()

    def files(self) -> list[BoxFile]:
        self._end_file()
        return [
            BoxFile(name, content, executable)
            for (name, executable), content in zip(self._names, self._contents, strict=True)
        ]
