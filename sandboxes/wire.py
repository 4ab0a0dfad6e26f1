"""The layouts of the frames between a worker and boxd; the numbers are in `boxd.frames`.

A frame is kind, id and size, then the payload. The worker picks the id; every answer carries it.
What comes from a box is never trusted: only fixed-width numbers and bytes are read from it.

    to the box                                      from the box
    EXEC   flags:1 timeout_ms:4 cap:4 num_args:2    RESULT  flags:1 wait_status:4 cpu_us:8
           cwd NUL-joined with argv and K=V words           peak_bytes:8 micros:8 out_total:8
    STDIN  bytes; none: the end                             err_total:8 out_size:8 out err
    KILL   (also ends a download)                   ACK     bytes of stdin taken:4
    FILE   x or -, path   } an upload:              FILE CHUNK END  (a download)
    CHUNK  bytes          } FILE CHUNK* FILE        END     an upload is in place
    END                   } CHUNK* ... END          ERROR   errno:4 text
    GET    f or t, limit:8, path                    PONG
    PING                                            READY   version:4, once, with id 0
    PEEK   (at a running command)                   PEEKED  as RESULT, without an end
    RUN    timeout_ms:4 script, of a session        TURN    as RESULT, of that script

stdin is sent at most `STDIN_WINDOW_BYTES` ahead of what the command has taken, so that boxd's
memory is bounded and one command that does not read cannot hold up the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sandboxes.boxd import frames
from sandboxes.sandbox import ExecResult, ExecUsage

STDIN_WINDOW_BYTES = 2 * frames.STDIN_ACK_BYTES
MAX_TIMEOUT_S = 2**32 / 1000 - 1
RESULT_HEAD_BYTES = 53
_SHOWN_CHARS = 40


def frame(kind: int, frame_id: int, payload: bytes = b"") -> bytes:
    return bytes((kind,)) + frame_id.to_bytes(4, "big") + len(payload).to_bytes(4, "big") + payload


class FrameReader:
    """Cuts a byte stream into (kind, id, payload); a frame over `limit` bytes is an error."""

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= frames.HEADER_BYTES:
                body = start + frames.HEADER_BYTES
                kind = self._buffer[start]
                frame_id, size = _numbers(self._buffer[start + 1 : body], 4, 4)
                if size > self.limit:
                    raise ValueError(f"a frame of {size} bytes, over the limit of {self.limit}")
                if len(self._buffer) < body + size:
                    break
                start = body + size
                yield kind, frame_id, bytes(self._buffer[body:start])
        finally:
            del self._buffer[:start]


class Unrunnable(ValueError):
    """A command that no program can be given; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a box is to run. Raises `Unrunnable`, and ValueError for names that no variable has."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    """Relative to the workdir, or absolute."""
    stdin: bytes = b""

    def __post_init__(self) -> None:
        _ = self.words
        if any("=" in key or not key for key in self.env):
            raise ValueError(
                f"environment names cannot be empty or hold '=', got {sorted(self.env)}"
            )

    @property
    def words(self) -> list[bytes]:
        words = [self.cwd, *self.argv, *(f"{key}={value}" for key, value in self.env.items())]
        return [_word(word) for word in words]


def _word(text: str) -> bytes:
    try:
        word = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        why = f"{text[error.start]!r} is half a character"
        raise Unrunnable(f"cannot run {text[:_SHOWN_CHARS]!r}: {why}") from error
    if b"\0" in word:
        why = "no program can be given a NUL character"
        raise Unrunnable(f"cannot run {text[:_SHOWN_CHARS]!r}: {why}")
    return word


def exec_request(command: Command, *, timeout_s: float | None, cap: int, flags: int = 0) -> bytes:
    """All but its stdin. Without a time-out it runs until it ends, is killed or the box is closed."""
    numbers = _milliseconds(timeout_s) + cap.to_bytes(4, "big")
    numbers += len(command.argv).to_bytes(2, "big")
    return bytes((flags,)) + numbers + b"\0".join(command.words)


def run_request(script: str, timeout_s: float) -> bytes:
    """Raises `Unrunnable`."""
    return _milliseconds(timeout_s) + _word(script)


def check_timeout(timeout_s: float) -> None:
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ValueError(f"timeout_s={timeout_s} must be over 0 and at most {MAX_TIMEOUT_S:.0f}")


def _milliseconds(timeout_s: float | None) -> bytes:
    return (0 if timeout_s is None else max(1, int(timeout_s * 1000))).to_bytes(4, "big")


def check_result(payload: bytes) -> None:
    if len(payload) < RESULT_HEAD_BYTES:
        raise ValueError(f"a result of {len(payload)} bytes, wanted at least {RESULT_HEAD_BYTES}")


def exec_result(payload: bytes) -> ExecResult:
    """Of a payload that is checked."""
    flags = payload[0]
    status, cpu_us, peak, micros, out_total, err_total, out_size = _numbers(
        payload[1:], 4, 8, 8, 8, 8, 8, 8
    )
    signal_number = status & 0x7F
    body = payload[RESULT_HEAD_BYTES:]
    return ExecResult(
        rc=128 + signal_number if signal_number else (status >> 8) & 0xFF,
        out=body[:out_size],
        err=body[out_size:],
        out_bytes=out_total,
        err_bytes=err_total,
        timed_out=bool(flags & frames.TIMED_OUT),
        oom=bool(flags & frames.OOM),
        seconds=micros / 1e6,
        usage=ExecUsage(cpu_seconds=cpu_us / 1e6, max_rss_bytes=peak),
    )


def not_run(rc: int, why: str) -> ExecResult:
    """Of a command that was not even started."""
    err = f"{why}\n".encode()
    return ExecResult(rc=rc, out=b"", err=err, out_bytes=0, err_bytes=len(err))


def file_frames(frame_id: int, path: str, data: bytes, *, executable: bool) -> Iterator[bytes]:
    flag = b"x" if executable else b"-"
    yield frame(frames.FILE, frame_id, flag + path.encode("utf-8", "surrogateescape"))
    for start in range(0, len(data), frames.CHUNK_BYTES):
        yield frame(frames.CHUNK, frame_id, data[start : start + frames.CHUNK_BYTES])


def get_request(path: str, *, limit: int, tree: bool) -> bytes:
    kind = b"t" if tree else b"f"
    return kind + limit.to_bytes(8, "big") + path.encode("utf-8", "surrogateescape")


def error(payload: bytes) -> tuple[int, str]:
    """errno and text."""
    return int.from_bytes(payload[:4], "big"), payload[4:].decode("utf-8", "replace")


def _numbers(data: bytes | bytearray, *widths: int) -> Iterator[int]:
    at = 0
    for width in widths:
        yield int.from_bytes(data[at : at + width], "big")
        at += width
