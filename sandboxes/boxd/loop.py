"""The poll loop of boxd and its stream: frames in from descriptor 0, frames out to 1."""

import posix
import select
import sys
from collections.abc import Callable

from sandboxes.boxd.frames import CHUNK_BYTES, HEADER_BYTES

OUT_HIGH_WATER_BYTES = 512 * 1024


class Loop:
    """Calls `on_frame(kind, id, payload)` for each frame, and handlers of watched descriptors."""

    def __init__(self, on_frame: "Callable[[int, int, bytes], None]") -> None:
        self.on_frame = on_frame
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.poll = select.poll()
        self.handlers: dict[int, Callable[[int], object]] = {}
        for fd in (0, 1):
            posix.set_blocking(fd, False)
        self.watch(0, select.POLLIN, self.read_stream)

    def turn(self, wait_ms: int) -> None:
        for fd, _ in self.poll.poll(wait_ms):
            handler = self.handlers.get(fd)
            if handler is not None:
                handler(fd)

    def watch(self, fd: int, events: int, handler: "Callable[[int], object]") -> None:
        self.handlers[fd] = handler
        self.poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        if self.handlers.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def close(self, fd: int) -> None:
        self.unwatch(fd)
        posix.close(fd)

    def send(self, kind: int, frame_id: int, payload: bytes = b"") -> None:
        self.outbox.append(kind)
        self.outbox += frame_id.to_bytes(4, "big") + len(payload).to_bytes(4, "big") + payload

    def has_room(self) -> bool:
        return len(self.outbox) < OUT_HIGH_WATER_BYTES

    def flush(self) -> None:
        try:
            while self.outbox:
                del self.outbox[: posix.write(1, self.outbox)]
        except BlockingIOError:
            if 1 not in self.handlers:
                self.watch(1, select.POLLOUT, self.unwatch)
        except OSError:  # the other end is gone, and the box's purpose with it
            sys.exit(0)

    def read_stream(self, fd: int) -> None:
        try:
            data = posix.read(fd, 4 * CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            sys.exit(0)
        self.inbox += data
        start = 0
        while len(self.inbox) - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            end = body + int.from_bytes(self.inbox[start + 5 : body], "big")
            if len(self.inbox) < end:
                break
            frame_id = int.from_bytes(self.inbox[start + 1 : start + 5], "big")
            self.on_frame(self.inbox[start], frame_id, bytes(self.inbox[body:end]))
            start = end
        del self.inbox[:start]
