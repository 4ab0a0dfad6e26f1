"""A command that boxd starts and reaps by itself: a supervisor's fork costs more than most commands.

Only where boxd is the box's init: then no command can kill it, and it becomes the parent of all
that loses its own. One command runs like this at a time, and none while anything is left of the
last one; so boxd's children that are no supervisors are this command's, and killing them until
there are none is exact.
"""

import posix
import select

from sandboxes.boxd.command import Command
from sandboxes.boxd.loop import Loop
from sandboxes.boxd.supervisor import CLEAN, command_of, end_record, spawn

OOM_ADJUSTMENT = b"500"


class DirectRun:
    def __init__(self, loop: Loop, null: int) -> None:
        self.loop = loop
        self.null = null
        self.command: Command | None = None
        self.leader = 0
        self.pidfd = -1
        self.workdir = posix.open(b".", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
        self.is_possible = posix.getpid() == 1 and can_watch_processes()

    def start(self, command: Command, request: bytes) -> None:
        pipes = {target: posix.pipe() for target in (1, 2)}
        writers = {target: writer for target, (_, writer) in pipes.items()}
        readers = {target: reader for target, (reader, _) in pipes.items()}
        try:
            argv, env, cwd = command_of(request)
            self.leader = spawn(argv, env, cwd, {0: self.null, **writers})
        except OSError:
            for reader in readers.values():
                posix.close(reader)
            raise
        finally:
            posix.fchdir(self.workdir)
            for writer in writers.values():
                posix.close(writer)
        prefer_leader_for_oom_killer(self.leader)
        self.command = command
        self.pidfd = posix.pidfd_open(self.leader)
        self.loop.watch(self.pidfd, select.POLLIN, wake_up)
        for reader in readers.values():
            posix.set_blocking(reader, False)
        command.has_started(readers)

    def leader_ended(self, status: int, cpu_s: float, peak_kib: int) -> None:
        command = self.command
        assert command is not None
        self.leader = 0
        self.loop.close(self.pidfd)
        command.record = end_record(CLEAN, status, cpu_s, peak_kib)
        if not command.kill_rounds:
            self.over()

    def over(self) -> None:
        """Its leader has ended by itself, or all of it was killed."""
        command, self.command = self.command, None
        assert command is not None
        command.is_over()

    @property
    def is_being_killed(self) -> bool:
        return self.command is not None and self.command.kill_rounds > 0


def can_watch_processes() -> bool:
    try:
        posix.close(posix.pidfd_open(posix.getpid()))
    except (AttributeError, OSError):  # an older Python or kernel
        return False
    return True


def wake_up(fd: int) -> None:
    """The loop reaps the dead at every turn."""


def prefer_leader_for_oom_killer(pid: int) -> None:
    """Running out of memory should cost the command, not boxd."""
    try:
        fd = posix.open(b"/proc/%d/oom_score_adj" % pid, posix.O_WRONLY | posix.O_CLOEXEC)
        posix.write(fd, OOM_ADJUSTMENT)
        posix.close(fd)
    except OSError:  # it has ended, or a stricter host: the kernel then picks by size alone
        pass
