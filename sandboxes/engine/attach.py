"""The attached stream of a container, as the transport of a `BoxClient`.

The engine upgrades an HTTP request to a raw stream: what we write is the stdin of the container's
main process, what we read are frames of its stdout and stderr, each with a header of a stream
number, three zero bytes and a size.
"""

from __future__ import annotations

import asyncio

from sandboxes.client import BoxClient
from sandboxes.engine.connection import Address

_FRAME_HEADER_BYTES = 8
_STDOUT = 1
_MAX_RESPONSE_BYTES = 64 * 1024
_KEPT_ERROR_BYTES = 4096


class AttachStream(asyncio.Protocol):
    def __init__(self, client: BoxClient, path: str) -> None:
        self._client = client
        self._path = path
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._stream, self._left = 0, 0
        self.attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.errors = b""
        """The last words on stderr."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(
            f"POST {self._path} HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\n"
            "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.attached.done():
            self._read_response()
        if self.attached.done():
            self._read_frames()

    def _read_response(self) -> None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end and len(head) < _MAX_RESPONSE_BYTES:
            return
        status = bytes(head.split(b"\r\n", 1)[0])
        assert self._transport is not None
        if status.split(b" ")[1:2] not in ([b"101"], [b"200"]):
            reason = status.decode("latin-1") + bytes(rest).decode("utf-8", "replace")
            self._fail(f"the engine refused to attach to the box: {reason}")
            return
        self._buffer = bytearray(rest)
        self._client.connection_made(self._transport)
        self.attached.set_result(None)

    def _fail(self, reason: str) -> None:
        assert self._transport is not None
        self._transport.abort()
        if not self.attached.done():
            self.attached.set_exception(OSError(reason))

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
            if self._stream == _STDOUT:
                self._client.data_received(part)
            else:
                self.errors = (self.errors + part)[-_KEPT_ERROR_BYTES:]

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        self._client.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the engine closed the connection{f': {exc}' if exc else ''}")
        self._client.connection_lost(exc)


async def attach(client: BoxClient, address: Address, path: str) -> AttachStream:
    """Connect `client` to the main process of a container that is created and not yet started."""
    loop = asyncio.get_running_loop()

    def protocol() -> AttachStream:
        return AttachStream(client, path)

    if address.path is not None:
        transport, stream = await loop.create_unix_connection(protocol, address.path)
    else:
        host, port = address.host_and_port
        transport, stream = await loop.create_connection(protocol, host, port, ssl=address.tls)
    try:
        await stream.attached
    except BaseException:
        transport.abort()
        raise
    return stream
