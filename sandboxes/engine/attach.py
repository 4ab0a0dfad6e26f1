"""The attached stream of a container, as the transport of a `BoxClient`."""

from __future__ import annotations

from sandboxes.client import BoxClient
from sandboxes.engine.connection import Address
from sandboxes.engine.hijack import STDOUT, open_stream

_KEPT_ERROR_BYTES = 4096


class AttachStream:
    """What the container's main process says on stdout is the client's; stderr is for people."""

    def __init__(self, client: BoxClient) -> None:
        self._client = client
        self.connection_made = client.connection_made
        self.pause_writing = client.pause_writing
        self.resume_writing = client.resume_writing
        self.errors = b""
        """The last words on stderr."""
        self.ended_by_box = False
        """The stream ended before we had a reason to end it."""

    def received(self, stream: int, data: bytes) -> None:
        if stream == STDOUT:
            self._client.data_received(data)
        else:
            self.errors = (self.errors + data)[-_KEPT_ERROR_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended_by_box = self._client.lost is None
        self._client.connection_lost(exc)


async def attach(client: BoxClient, address: Address, path: str) -> AttachStream:
    """Connect `client` to the main process of a container that is created and not yet started."""
    stream = AttachStream(client)
    await open_stream(stream, address, path)
    return stream
