"""What is kept of a command's output."""


class Capture:
    """The head and the tail of one output stream, in constant memory, and its true size."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.clear()

    def clear(self) -> None:
        self.total = 0
        self.head = bytearray()
        self.tail = bytearray()

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.cap // 2 - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 2 * self.cap:
            del self.tail[: len(self.tail) - self.cap]

    def value(self) -> bytes:
        """All of it, or head, mark and tail: at most `cap` bytes."""
        if self.total <= self.cap:
            return bytes(self.head + self.tail)
        keep = max(self.cap - 32 - len(str(self.total)), 0)
        mark = b"\n[... %d bytes dropped ...]\n" % (self.total - keep) if keep else b""
        head = keep // 2 if keep else self.cap // 2
        tail = (keep or self.cap) - head
        return bytes(self.head[:head]) + mark + bytes(self.tail[len(self.tail) - tail :])
