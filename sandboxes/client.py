"""The worker's end of a box's stream: many calls over one connection.

A call is a frame with a fresh id and the frames that come back with it. Whoever waits for a call
stops waiting at its deadline or when the stream is lost, and a call that is abandoned (cancelled,
late) is killed in the box. Frames of unknown ids belong to abandoned calls and are dropped. A box
that breaks the protocol is as good as lost: its memory may belong to the model's code.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from typing import NamedTuple

from sandboxes import wire
from sandboxes.boxd import frames
from sandboxes.sandbox import SandboxLost

_LAST_FRAMES = frozenset({frames.RESULT, frames.END, frames.ERROR, frames.PONG})
_RESULTS = frozenset({frames.RESULT, frames.PEEKED, frames.TURN})
_PART_BYTES = 128
"""What a frame costs beside its payload."""
_AHEAD_BYTES = 16 * 1024 * 1024
"""Many times what can come before whoever waits for it has its turn."""


class Deadline(NamedTuple):
    at: float | None
    """In the event loop's time."""
    what: str
    """What the time is for."""

    @classmethod
    def after(cls, timeout_s: float, what: str) -> Deadline:
        now = asyncio.get_running_loop().time()
        return cls(now + timeout_s, f"{what} ({timeout_s:.1f} s)")


NEVER = Deadline(None, "")


class Call:
    """One request in flight, until its deadline, if it has one."""

    def __init__(self, client: BoxClient, call_id: int, deadline: Deadline) -> None:
        self._client = client
        self._deadline = deadline
        self._changed = asyncio.Event()
        self.id = call_id
        self.is_closed = False
        self.last: tuple[int, bytes] | None = None
        """The frame that ended the call."""
        self._parts: deque[tuple[int, bytes]] = deque()
        """Frames that nobody has taken yet: FILE, CHUNK, PEEKED and TURN."""
        self._parts_bytes = 0
        self.stdin_window = wire.STDIN_WINDOW_BYTES

    def on_frame(self, kind: int, payload: bytes) -> None:
        """`ValueError` for what no box sends that keeps to the protocol."""
        if kind in _RESULTS:
            wire.check_result(payload)
        if kind == frames.ACK:
            self.stdin_window += int.from_bytes(payload[:4], "big")
        elif kind in _LAST_FRAMES:
            self.last = (kind, payload)
        else:
            self._keep(kind, payload)
        self._changed.set()

    def _keep(self, kind: int, payload: bytes) -> None:
        self._parts_bytes += _PART_BYTES + len(payload)
        if self._parts_bytes > self._client.max_parts_bytes:
            raise ValueError("it sends what nobody takes")
        self._parts.append((kind, payload))

    def on_lost(self) -> None:
        self._changed.set()

    def send(self, kind: int, payload: bytes = b"") -> None:
        self._client.write(wire.frame(kind, self.id, payload))

    async def stream(self, data: bytes) -> None:
        """Send whole frames, no faster than the box takes them."""
        self._client.write(data)
        await self._wait(self._client.can_write, self._deadline)
        self._client.raise_if_lost()

    async def change(self, deadline: Deadline | None = None) -> None:
        """Return after any news; raise `SandboxLost` when there will be none, or none in time."""
        await self._wait(self._changed, deadline or self._deadline)
        self._changed.clear()
        if self.last is None:
            self._client.raise_if_lost()

    async def _wait(self, event: asyncio.Event, deadline: Deadline) -> None:
        if event.is_set():
            return
        try:
            async with asyncio.timeout_at(deadline.at):
                await event.wait()
        except TimeoutError:
            # An answer that waits in the socket behind a stalled event loop is not late.
            if not event.is_set():
                self._client.close(f"the box did not answer within {deadline.what}")
                self._client.raise_if_lost()

    async def end(self, deadline: Deadline | None = None) -> tuple[int, bytes]:
        """The last frame. A deadline of this one alone binds nobody else who waits."""
        while self.last is None:
            await self.change(deadline)
        return self.last

    async def part(self, deadline: Deadline | None = None) -> tuple[int, bytes]:
        """The next frame of any kind; of a deadline the same is true."""
        while self.last is None and not self._parts:
            await self.change(deadline)
        if not self._parts:
            return await self.end()
        kind, payload = self._parts.popleft()
        self._parts_bytes -= _PART_BYTES + len(payload)
        return kind, payload

    def close(self) -> None:
        """No more answers are wanted; what runs is killed."""
        self.is_closed = True
        self._client.forget(self)


class BoxClient(asyncio.Protocol):
    """The protocol object of one box's stream."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader = wire.FrameReader(limit=2 * frames.CHUNK_BYTES)
        self._calls: dict[int, Call] = {}
        self._ids = itertools.count(1)
        self._ready = asyncio.Event()
        self.can_write = asyncio.Event()
        """Clear while the transport's buffer is above its high-water mark."""
        self.lost: str | None = None
        """Why there will be no more answers."""

    async def connect(self, stream: socket.socket) -> None:
        """Take over our end of a socket pair."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_unix_connection(lambda: self, sock=stream)
        except BaseException:
            stream.close()
            raise

    async def ready(self) -> None:
        await self._ready.wait()
        self.raise_if_lost()

    def raise_if_lost(self) -> None:
        if self.lost is not None:
            raise SandboxLost(self.lost)

    @property
    def max_parts_bytes(self) -> int:
        """How much of a call may wait to be taken: an answer, or what a download has ahead."""
        return self._reader.limit + _AHEAD_BYTES

    def expect_frames_of(self, num_bytes: int) -> None:
        """A frame larger than any that was asked for is refused; this one is asked for."""
        self._reader.limit = max(self._reader.limit, num_bytes)

    def open_call(self, deadline: Deadline) -> Call:
        """A call that its owner must close."""
        self.raise_if_lost()
        call = Call(self, next(self._ids), deadline)
        self._calls[call.id] = call
        return call

    def forget(self, call: Call) -> None:
        if self._calls.pop(call.id, None) and call.last is None and self.lost is None:
            call.send(frames.KILL)

    def write(self, data: bytes) -> None:
        self.raise_if_lost()
        assert self._transport is not None
        self._transport.write(data)

    def close(self, reason: str) -> None:
        """No more calls; those in flight end with `SandboxLost`."""
        self._lose(reason)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.can_write.set()

    def data_received(self, data: bytes) -> None:
        try:
            for kind, call_id, payload in self._reader.feed(data):
                self._on_frame(kind, call_id, payload)
        except ValueError as e:
            self.close(f"the box broke its protocol: {e}")

    def _on_frame(self, kind: int, call_id: int, payload: bytes) -> None:
        if kind == frames.READY:
            self._ready.set()
        elif call_id in self._calls:
            self._calls[call_id].on_frame(kind, payload)

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"the box's stream ended{f': {exc}' if exc else ''}")

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._ready.set()
        self.can_write.set()
        for call in self._calls.values():
            call.on_lost()
