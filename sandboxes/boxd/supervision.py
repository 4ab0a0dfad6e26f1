"""boxd's end of its supervisors."""

import posix

from sandboxes.boxd.frames import HAS_STDIN, IS_SESSION
from sandboxes.boxd.supervisor import CONTROL_FD, STATUS_FD, TURN_FD, supervise

MAX_REQUEST_BYTES = 32 * 1024
"""What fits into a pipe with room to spare, so that handing it over does not block."""


class Supervisor:
    """A supervisor's pid (0 once it is reaped) and our ends of its pipes, by its descriptors."""

    def __init__(self, pid: int, fds: "dict[int, int]") -> None:
        self.pid = pid
        self.fds = fds

    def take(self, request: bytes) -> bool:
        """The next command for one that serves many; False when it is gone."""
        try:
            posix.write(self.fds[CONTROL_FD], len(request).to_bytes(4, "big") + request)
        except BrokenPipeError:
            return False
        return True


def fork_supervisor(null: int, flags: int, request: "bytes | None") -> Supervisor:
    """One for the command of `request` only, or, without one, for many without stdin."""
    targets = [1, 2, STATUS_FD]
    if flags & HAS_STDIN:
        targets.append(0)
    if flags & IS_SESSION:
        targets.append(TURN_FD)
    if request is None:
        targets.append(CONTROL_FD)
    ours: dict[int, int] = {}
    theirs = {0: null}
    try:
        for target in targets:
            reader, writer = posix.pipe()
            is_read_by_us = target not in (0, CONTROL_FD)
            ours[target], theirs[target] = (reader, writer) if is_read_by_us else (writer, reader)
        pid = posix.fork()
    except OSError:
        for fd in {*ours.values(), *theirs.values()} - {null}:
            posix.close(fd)
        raise
    if pid == 0:
        try:
            supervise(dict(sorted(theirs.items())), request)
        finally:
            posix._exit(0)
    for fd in {*theirs.values()} - {null}:
        posix.close(fd)
    for target in {0, 1, 2} & ours.keys():
        posix.set_blocking(ours[target], False)
    return Supervisor(pid, ours)
