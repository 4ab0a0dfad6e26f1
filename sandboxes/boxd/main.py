"""The box's main process: starts commands, answers them, kills them, moves files."""

import _signal  # type: ignore[import-not-found]  # has no stub, and `signal` costs 8 ms
import errno
import posix
import time
from collections.abc import Iterator

from sandboxes.boxd.command import Command
from sandboxes.boxd.direct import DirectRun
from sandboxes.boxd.files import Incoming, outgoing
from sandboxes.boxd.frames import (
    CHUNK,
    CHUNK_BYTES,
    END,
    ERROR,
    EXEC,
    FILE,
    GET,
    KILL,
    OOM,
    PEEK,
    PEEKED,
    PING,
    PONG,
    READY,
    RESULT,
    RUN,
    STDIN,
    TIMED_OUT,
    VERSION,
)
from sandboxes.boxd.loop import Loop
from sandboxes.boxd.supervision import MAX_REQUEST_BYTES, Supervisor, fork_supervisor
from sandboxes.boxd.supervisor import (
    KILL_SIGNAL,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    children,
    kill_children,
    prctl,
    prepare_supervisors,
)

TREE_KILL_S = 0.3
BROADCAST_KILL_S = 0.5
SWEEP_MS = 2
NEVER = float("inf")
MAX_IDLE = 8
MAX_DRAINS = 32
DRAIN_BYTES = 16 * 1024 * 1024
COLLATERAL = (
    b"\n[killed with all of this box: another of its commands could not be stopped alone]\n"
)


class Boxd:
    def __init__(self, *, is_isolated: bool, oom_fd: int) -> None:
        self.is_isolated = is_isolated
        self.oom_fd = oom_fd
        self.num_oom_kills = self.count_oom_kills()
        self.loop = Loop(self.on_frame)
        self.commands: dict[int, Command] = {}
        self.uploads: dict[int, Incoming] = {}
        self.downloads: dict[int, Iterator[tuple[int, bytes]]] = {}
        self.drains: dict[int, int] = {}
        self.idle: list[Supervisor] = []
        self.null = posix.open(b"/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
        self.direct = DirectRun(self.loop, self.null)
        self.has_children = False

    def run(self) -> None:
        self.loop.send(READY, 0, VERSION.to_bytes(4, "big"))
        while True:
            self.loop.flush()
            self.loop.turn(self.wait_ms())
            self.reap_orphans()
            self.sweep()
            self.check_deadlines()
            self.pump_downloads()

    def wait_ms(self) -> int:
        if self.downloads and self.loop.has_room():
            return 0
        if self.direct.is_being_killed:
            return SWEEP_MS
        soonest = min((command.deadline for command in self.commands.values()), default=NEVER)
        return -1 if soonest == NEVER else max(0, int((soonest - time.monotonic()) * 1000) + 1)

    def on_frame(self, kind: int, frame_id: int, payload: bytes) -> None:
        if kind == EXEC:
            self.start(frame_id, payload)
        elif kind in (STDIN, RUN, PEEK, KILL):
            self.downloads.pop(frame_id, None)
            if frame_id in self.commands:
                self.on_command_frame(self.commands[frame_id], kind, payload)
        elif kind in (FILE, CHUNK, END):
            self.receive(kind, frame_id, payload)
        elif kind == GET:
            is_tree, limit = payload[:1] == b"t", int.from_bytes(payload[1:9], "big")
            self.downloads[frame_id] = outgoing(payload[9:], limit, is_tree)
        elif kind == PING:
            self.loop.send(PONG, frame_id)

    def on_command_frame(self, command: Command, kind: int, payload: bytes) -> None:
        if kind == STDIN:
            command.feed(payload)
        elif kind == RUN:
            command.run_turn(int.from_bytes(payload[:4], "big") / 1000, payload[4:])
        elif kind == PEEK:
            self.loop.send(PEEKED, command.id, command.report(0, bytes(20)))
        else:
            self.kill(command)

    def fail(self, frame_id: int, e: OSError) -> None:
        code = e.errno or errno.EIO
        self.loop.send(ERROR, frame_id, code.to_bytes(4, "big") + str(e.strerror).encode())

    # files

    def receive(self, kind: int, frame_id: int, payload: bytes) -> None:
        upload = self.uploads.setdefault(frame_id, Incoming())
        upload.take(kind, payload)
        if kind == END:
            del self.uploads[frame_id]
            if upload.failure is None:
                self.loop.send(END, frame_id)
            else:
                self.fail(frame_id, upload.failure)

    def pump_downloads(self) -> None:
        for frame_id, frames in list(self.downloads.items()):
            try:
                while self.loop.has_room():
                    kind, payload = next(frames)
                    self.loop.send(kind, frame_id, payload)
            except StopIteration:
                del self.downloads[frame_id]
            except OSError as e:
                del self.downloads[frame_id]
                self.fail(frame_id, e)

    # commands

    def start(self, command_id: int, payload: bytes) -> None:
        flags, timeout_s = payload[0], int.from_bytes(payload[1:5], "big") / 1000
        cap = int.from_bytes(payload[5:9], "big")
        command = Command(self.loop, command_id, cap, timeout_s or NEVER, self.on_change)
        self.reap_orphans()  # the dead count as processes
        try:
            if self.can_run_directly(flags):
                self.direct.start(command, payload[9:])
                self.has_children = True
            else:
                command.attach(self.hand_over(flags, payload[9:]))
        except OSError as e:
            self.fail(command_id, e)
            return
        self.commands[command_id] = command

    def can_run_directly(self, flags: int) -> bool:
        is_free = self.direct.is_possible and self.direct.command is None
        return is_free and not flags and not self.strangers()

    def hand_over(self, flags: int, request: bytes) -> Supervisor:
        """To an idle supervisor, or a new one; odd commands get one for themselves."""
        if flags or len(request) > MAX_REQUEST_BYTES:
            return fork_supervisor(self.null, flags, request)
        while self.idle:
            supervisor = self.idle.pop()
            if supervisor.pid and supervisor.take(request):
                return supervisor
            self.dismiss(supervisor)
        supervisor = fork_supervisor(self.null, flags, None)
        supervisor.take(request)
        return supervisor

    def dismiss(self, supervisor: Supervisor) -> None:
        """It ends when its pipe of requests does."""
        for fd in supervisor.fds.values():
            posix.close(fd)

    def on_change(self, command: Command) -> None:
        if not command.is_supervised and not command.record and not command.kill_rounds:
            command.kill_rounds = 1
            self.kill_all(command)  # somebody killed the supervisor: its tree has no owner now
        if command.has_ended and not command.captures and not command.is_answered:
            self.answer(command)
        if command.is_answered and not command.is_supervised:
            forgotten = self.commands.pop(command.id, None)
            if forgotten and command.is_detached:
                if len(self.idle) < MAX_IDLE:
                    self.idle.append(command.supervisor)
                else:
                    self.dismiss(command.supervisor)

    def answer(self, command: Command) -> None:
        command.is_answered = True
        command.deadline = NEVER
        command.close_stdin()
        if command.turn_fd >= 0:
            self.loop.close(command.turn_fd)
            command.turn_fd = -1
        for fd in command.captures:
            self.drain(fd)
        command.captures.clear()
        if command.failure:
            self.fail(command.id, OSError(command.failure, posix.strerror(command.failure)))
            return
        is_oom = any(command.end[:4]) and not command.timed_out and self.saw_oom_kill()
        flags = TIMED_OUT * command.timed_out | OOM * is_oom
        self.loop.send(RESULT, command.id, command.report(flags, command.end))
        command.out.clear()  # it may be remembered for as long as anything is left of it
        command.err.clear()

    def drain(self, fd: int) -> None:
        """A child left in the background still holds this pipe: read on, keep nothing."""
        if len(self.drains) >= MAX_DRAINS:
            oldest = next(iter(self.drains))
            del self.drains[oldest]
            self.loop.close(oldest)
        self.drains[fd] = DRAIN_BYTES
        self.loop.handlers[fd] = self.read_drain

    def read_drain(self, fd: int) -> None:
        try:
            size = len(posix.read(fd, CHUNK_BYTES))
        except BlockingIOError:
            return
        self.drains[fd] -= size
        if not size or self.drains[fd] < 0:
            del self.drains[fd]
            self.loop.close(fd)

    # orphans, deadlines and kills

    def reap_orphans(self) -> None:
        """We are the box's init, or the reaper of what its commands leave behind."""
        while True:
            try:
                pid, status, usage = posix.wait4(-1, posix.WNOHANG)
            except ChildProcessError:
                self.has_children = False
                return
            if pid == 0:
                self.has_children = True
                return
            if pid == self.direct.leader:
                cpu_s = usage.ru_utime + usage.ru_stime
                self.direct.leader_ended(status, cpu_s, usage.ru_maxrss)
            for supervisor in [c.supervisor for c in self.commands.values()] + self.idle:
                if supervisor.pid == pid:
                    supervisor.pid = 0

    def strangers(self) -> "list[int]":
        """Our children that are no supervisors: a command that runs directly, or what it left."""
        if not self.has_children:
            return []
        supervisors = {c.supervisor.pid for c in self.commands.values()}
        supervisors.update(supervisor.pid for supervisor in self.idle)
        return [pid for pid in children() if pid not in supervisors]

    def sweep(self) -> None:
        """Go on killing a direct command until nothing is left of it."""
        if self.direct.is_being_killed:
            left = self.strangers()
            for pid in left:
                posix.kill(pid, _signal.SIGKILL)
            if not left and not self.direct.leader:
                self.direct.over()

    def check_deadlines(self) -> None:
        now = time.monotonic()
        for command in [c for c in self.commands.values() if c.deadline <= now]:
            if command.has_ended:
                self.answer(command)
                self.on_change(command)
            else:
                command.timed_out = True
                self.kill(command)

    def kill(self, command: Command) -> None:
        """The next rung of the ladder: the command's tree, then everything in the box."""
        if not command.is_supervised:
            return
        command.kill_rounds += 1
        if command.kill_rounds == 1 and command is self.direct.command:
            others = [c for c in self.commands.values() if c is not command and c.is_supervised]
            if others:
                self.sweep()
            else:
                self.kill_all(command)
            command.deadline = time.monotonic() + TREE_KILL_S
        elif command.kill_rounds == 1 and command.supervisor.pid:
            posix.kill(command.supervisor.pid, KILL_SIGNAL)
            command.deadline = time.monotonic() + TREE_KILL_S
        else:
            self.kill_all(command)
            command.deadline = time.monotonic() + BROADCAST_KILL_S

    def kill_all(self, cause: Command) -> None:
        """All processes but init and us, in one call: a fork bomb outruns any list."""
        if not self.is_isolated:
            if cause.supervisor.pid:
                posix.kill(cause.supervisor.pid, _signal.SIGKILL)
            return
        for command in self.commands.values():
            if command is not cause and command.is_supervised and not command.is_answered:
                command.kill_rounds = command.kill_rounds or 1
                command.err.add(COLLATERAL)
        try:  # noqa: SIM105  # contextlib would have to be loaded
            posix.kill(-1, _signal.SIGKILL)
        except ProcessLookupError:  # nobody was left
            pass
        while self.idle:  # they may take a command yet, and die with it
            self.dismiss(self.idle.pop())

    def count_oom_kills(self) -> int:
        if self.oom_fd < 0:
            return 0
        words = posix.pread(self.oom_fd, 4096, 0).split()
        return int(words[words.index(b"oom_kill") + 1])

    def saw_oom_kill(self) -> bool:
        before, self.num_oom_kills = self.num_oom_kills, self.count_oom_kills()
        return self.num_oom_kills > before


def serve(limits: "dict[str, int]", *, is_isolated: bool, oom_fd: int) -> None:
    """Until the stream ends. `is_isolated`: in a process namespace of the box's own."""
    if limits:
        import resource

        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))
    posix.umask(0o022)
    prctl(PR_SET_DUMPABLE, 0)  # commands share our user: keep them out of our memory and stream
    prepare_supervisors()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        Boxd(is_isolated=is_isolated, oom_fd=oom_fd).run()
    finally:
        if not is_isolated:
            kill_children(0)


def open_or_none(path: str) -> int:
    """A box may be shown no control group, as by gVisor: then it cannot tell why it was killed."""
    try:
        return posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return -1


def main(args: "list[str]") -> None:
    """Arguments: `isolated=1`, `oom=FILE`, `RLIMIT_X=N`."""
    options = dict(arg.split("=", 1) for arg in args)
    limits = {name: int(value) for name, value in options.items() if name.startswith("RLIMIT_")}
    oom_fd = open_or_none(options.get("oom", ""))
    serve(limits, is_isolated="isolated" in options, oom_fd=oom_fd)
