"""A request that the engine answers with a raw stream: of a container's main process, or of an exec.

What we write is the stdin of the process, what we read are frames of its stdout and stderr, each
with a header of a stream number, three zero bytes and a size.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from sandboxes.engine.connection import Address

STDOUT, STDERR = 1, 2
_FRAME_HEADER_BYTES = 8
_MAX_RESPONSE_BYTES = 64 * 1024


class Receiver(Protocol):
    """Who wants the stream."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """The stream is open; from now on it can be written to."""
        ...

    def received(self, stream: int, data: bytes) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None:
        """Also without `connection_made`, when the engine refused."""
        ...


class _HijackedStream(asyncio.Protocol):
    def __init__(self, receiver: Receiver, path: str, body: bytes) -> None:
        self._receiver = receiver
        self._path, self._body = path, body
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._stream, self._left = 0, 0
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(self._body)}\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        )
        transport.write(head.encode() + self._body)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.opened.done():
            self._read_response()
        if self.opened.done():
            self._read_frames()

    def _read_response(self) -> None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end and len(head) < _MAX_RESPONSE_BYTES:
            return
        status = bytes(head.split(b"\r\n", 1)[0])
        assert self._transport is not None
        if status.split(b" ")[1:2] not in ([b"101"], [b"200"]):
            reason = status.decode("latin-1") + bytes(rest).decode("utf-8", "replace")
            self._fail(f"the engine refused a stream: {reason}")
            return
        self._buffer = bytearray(rest)
        self._receiver.connection_made(self._transport)
        self.opened.set_result(None)

    def _fail(self, reason: str) -> None:
        assert self._transport is not None
        self._transport.abort()
        if not self.opened.done():
            self.opened.set_exception(OSError(reason))

    def _read_frames(self) -> None:
        while self._buffer:
            if not self._left:
                if len(self._buffer) < _FRAME_HEADER_BYTES:
                    return
                self._stream = self._buffer[0]
                self._left = int.from_bytes(self._buffer[4:_FRAME_HEADER_BYTES], "big")
                del self._buffer[:_FRAME_HEADER_BYTES]
            part = bytes(self._buffer[: self._left])
            del self._buffer[: len(part)]
            self._left -= len(part)
            self._receiver.received(self._stream, part)

    def pause_writing(self) -> None:
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        self._receiver.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the engine closed the connection{f': {exc}' if exc else ''}")
        self._receiver.connection_lost(exc)


async def open_stream(
    receiver: Receiver, address: Address, path: str, body: bytes = b""
) -> asyncio.Transport:
    """Raises `OSError` when the engine refuses."""
    loop = asyncio.get_running_loop()

    def protocol() -> _HijackedStream:
        return _HijackedStream(receiver, path, body)

    if address.path is not None:
        transport, stream = await loop.create_unix_connection(protocol, address.path)
    else:
        host, port = address.host_and_port
        transport, stream = await loop.create_connection(protocol, host, port, ssl=address.tls)
    try:
        await stream.opened
    except BaseException:
        transport.abort()
        raise
    return transport
