"""One command of a box: its pipes, its supervisor, its deadline, what it printed."""

import _signal  # type: ignore[import-not-found]  # has no stub, and `signal` costs 8 ms
import posix
import select
import time
from collections.abc import Callable

from sandboxes.boxd.capture import Capture
from sandboxes.boxd.frames import ACK, CHUNK_BYTES, STDIN_ACK_BYTES, TURN
from sandboxes.boxd.loop import Loop
from sandboxes.boxd.supervision import Supervisor
from sandboxes.boxd.supervisor import CLEAN, CONTROL_FD, NOT_STARTED, STATUS_FD, TURN_FD

PIPE_BYTES = 2 * CHUNK_BYTES
"""More than an unread pipe can hold."""
GRACE_S = 0.25
"""How long after its leader's end a command's pipes may still be held open by its children."""


class Command:
    """`on_change(command)` is called when its end may have come.

    The end is known when the supervisor has reported the leader's (or, for a killed command,
    has seen the last of the tree die) and either both pipes are at their end or GRACE_S is over.
    """

    def __init__(
        self,
        loop: Loop,
        command_id: int,
        cap: int,
        timeout_s: float,
        on_change: "Callable[[Command], None]",
    ) -> None:
        self.loop = loop
        self.id = command_id
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.out, self.err = Capture(cap), Capture(cap)
        self.captures: dict[int, Capture] = {}
        self.supervisor = Supervisor(0, {})
        self.stdin_fd = self.turn_fd = -1
        self.stdin = bytearray()
        self.stdin_ended = False
        self.stdin_taken = 0
        self.record = b""
        self.kill_rounds = 0
        self.timed_out = self.is_answered = self.is_supervised = False
        self.is_detached = False
        """Its supervisor has done with it and can take another."""
        self.on_change = on_change

    def attach(self, supervisor: Supervisor) -> None:
        """To a supervisor that has the command."""
        self.supervisor, fds = supervisor, supervisor.fds
        self.has_started(fds)
        self.loop.watch(fds[STATUS_FD], select.POLLIN, self.read_status)
        self.stdin_fd = fds.get(0, -1)
        self.turn_fd = fds.get(TURN_FD, -1)
        if self.turn_fd >= 0:
            self.loop.watch(self.turn_fd, select.POLLIN, self.read_turn)

    def has_started(self, fds: "dict[int, int]") -> None:
        """What it prints comes from `fds[1]` and `fds[2]`."""
        self.is_supervised = True
        self.captures = {fds[1]: self.out, fds[2]: self.err}
        for fd in self.captures:
            self.loop.watch(fd, select.POLLIN, self.read_output)

    def is_over(self) -> None:
        """Nobody is there any more who could kill what it may have left."""
        self.is_supervised = False
        self.deadline = time.monotonic() + GRACE_S
        self.read_what_there_is()
        self.on_change(self)

    def read_what_there_is(self) -> None:
        """Now, however long the loop's turn takes; others may go on writing."""
        for fd in list(self.captures) * (PIPE_BYTES // CHUNK_BYTES):
            if fd in self.captures:
                self.read_output(fd)

    @property
    def has_ended(self) -> bool:
        return not self.is_supervised or bool(self.record and not self.kill_rounds)

    @property
    def failure(self) -> int:
        """errno of a command that could not be started, else 0."""
        return int.from_bytes(self.record[2:6], "big") if self.record[:1] == NOT_STARTED else 0

    @property
    def end(self) -> bytes:
        """Wait status, CPU time and peak memory, as the supervisor reported them."""
        return self.record[2:] or _signal.SIGKILL.to_bytes(4, "big") + bytes(16)

    def read_output(self, fd: int) -> bool:
        """Whether there was something."""
        try:
            data = posix.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if data:
            self.captures[fd].add(data)
            return True
        del self.captures[fd]
        self.loop.close(fd)
        self.on_change(self)
        return False

    def read_status(self, fd: int) -> None:
        record = posix.read(fd, 64)
        if record:
            self.record = record
            if CONTROL_FD in self.supervisor.fds and record[1:2] == CLEAN and not self.kill_rounds:
                self.detach()
        else:
            self.loop.close(fd)
            self.is_supervised = False
            if CONTROL_FD in self.supervisor.fds:
                posix.close(self.supervisor.fds[CONTROL_FD])
        if self.has_ended:
            self.deadline = time.monotonic() + GRACE_S
        self.on_change(self)

    def detach(self) -> None:
        """Nothing is left of the command, so its pipes hold all that is to come."""
        pipes = list(self.captures)
        for fd in pipes:
            while self.read_output(fd):
                pass
        if len(self.captures) < len(pipes):
            return  # they ended: the supervisor was killed since, and its end is still to come
        for fd in pipes:
            self.loop.unwatch(fd)
        self.loop.unwatch(self.supervisor.fds[STATUS_FD])
        self.captures.clear()
        self.is_supervised = False
        self.is_detached = True

    def report(self, flags: int, end: bytes) -> bytes:
        """The payload that tells what the command did, or has done so far."""
        out, err = self.out.value(), self.err.value()
        micros = int((time.monotonic() - self.started) * 1e6)
        numbers = (micros, self.out.total, self.err.total, len(out))
        return bytes((flags,)) + end + b"".join(n.to_bytes(8, "big") for n in numbers) + out + err

    def run_turn(self, timeout_s: float, script: bytes) -> None:
        """A session's next script; its shell writes the exit code to the turn's descriptor."""
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.feed(script)

    def read_turn(self, fd: int) -> None:
        code = posix.read(fd, 16)
        if not code:
            self.loop.close(fd)
            self.turn_fd = -1
            return
        self.read_what_there_is()  # it belongs to this turn
        rc = code.strip()
        status = (int(rc) & 0xFF if rc.isdigit() else 0xFF) << 8
        self.loop.send(TURN, self.id, self.report(0, status.to_bytes(4, "big") + bytes(16)))
        self.out.clear()
        self.err.clear()
        self.deadline = float("inf")

    def feed(self, data: bytes) -> None:
        if self.stdin_fd < 0:
            return
        self.stdin += data
        self.stdin_ended = not data
        self.loop.watch(self.stdin_fd, select.POLLOUT, self.write_stdin)

    def write_stdin(self, fd: int) -> None:
        try:
            taken = posix.write(fd, self.stdin[:CHUNK_BYTES])
        except BlockingIOError:
            return
        except BrokenPipeError:  # the command does not want the rest
            taken, self.stdin_ended = len(self.stdin), True
        del self.stdin[:taken]
        self.stdin_taken += taken
        if self.stdin_taken >= STDIN_ACK_BYTES or self.stdin_ended:
            self.loop.send(ACK, self.id, self.stdin_taken.to_bytes(4, "big"))
            self.stdin_taken = 0
        if self.stdin:
            return
        if self.stdin_ended:
            self.close_stdin()
        else:
            self.loop.unwatch(fd)

    def close_stdin(self) -> None:
        if self.stdin_fd >= 0:
            self.loop.close(self.stdin_fd)
            self.stdin_fd = -1
