"""The supervisor: a forked process for each command, reaper of all that the command starts."""

import _signal  # type: ignore[import-not-found]  # has no stub, and `signal` costs 8 ms
import errno
import posix
import time

try:
    import _ctypes
except ImportError:  # an image with a minimal python: a kill takes the whole box's processes
    HAS_CTYPES = False
else:
    HAS_CTYPES = True

STATUS_FD, TURN_FD = 3, 9
EXITED, NOT_STARTED = b"X", b"E"
"""First byte of what a supervisor reports: then wait status, cpu, peak memory | errno."""
MAX_FDS = 4096
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36

KILL_SIGNAL = _signal.SIGUSR1
"""Asks a supervisor to kill its command. Blocked in boxd, so that none comes too early."""


class KillTree(BaseException):
    """Raised in a supervisor by the kill signal."""


def prepare_supervisors() -> None:
    """In boxd, before the first fork."""
    _signal.signal(KILL_SIGNAL, on_kill_signal)
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (KILL_SIGNAL,))


def on_kill_signal(signum: int, frame: object) -> None:
    _signal.signal(KILL_SIGNAL, _signal.SIG_IGN)
    raise KillTree


def prctl(option: int, value: int) -> bool:
    if not HAS_CTYPES:
        return False
    call = _ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl")  # type: ignore[arg-type]  # None: us
    return bool(_ctypes.call_function(call, (option, value, 0, 0, 0)) == 0)


def supervise(
    argv: "list[bytes]", env: "dict[bytes, bytes]", cwd: bytes, fds: "tuple[int, ...]"
) -> None:
    """Run one command on `fds` (stdin, stdout, stderr, status); report its leader's end.

    A fifth, of a session, becomes the descriptor on which its shell tells the end of each turn.
    """
    for target, source in enumerate(fds[:4]):
        posix.dup2(source, target, target < STATUS_FD)
    if len(fds) > 4:
        posix.dup2(fds[4], TURN_FD)
        posix.set_inheritable(TURN_FD, True)  # dup2 leaves it alone when it is there already
    posix.closerange(STATUS_FD + 1, TURN_FD)
    posix.closerange(TURN_FD + (len(fds) > 4), MAX_FDS)
    is_reaper = prctl(PR_SET_CHILD_SUBREAPER, 1)
    posix.setsid()
    prefer_for_oom_killer()
    leader = 0
    try:
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (KILL_SIGNAL,))
        try:
            posix.chdir(cwd or b".")
            leader = spawn(argv, env)
        except OSError as e:
            posix.write(STATUS_FD, NOT_STARTED + (e.errno or errno.EINVAL).to_bytes(4, "big"))
            return
        # The command alone holds its pipes, so that their end of file means its end.
        for fd in (0, 1, 2, TURN_FD)[: len(fds) - 1]:
            posix.close(fd)
        reap(leader, block=True)
    except KillTree:
        if is_reaper:
            kill_children(leader)
        else:
            time.sleep(60)  # boxd climbs the ladder


def prefer_for_oom_killer() -> None:
    """Running out of memory should cost the command, not boxd."""
    prctl(PR_SET_DUMPABLE, 1)  # or our own /proc files are not ours
    try:
        fd = posix.open(b"/proc/self/oom_score_adj", posix.O_WRONLY)
        posix.write(fd, b"500")
        posix.close(fd)
    except OSError:  # no /proc, or a stricter host: the kernel then picks by size alone
        pass
    prctl(PR_SET_DUMPABLE, 0)


def spawn(argv: "list[bytes]", env: "dict[bytes, bytes]") -> int:
    """Start the leader in its own process group, found along its own PATH."""
    name = argv[0]
    folders = [b""] if b"/" in name else env.get(b"PATH", b"/usr/bin:/bin").split(b":")
    failure = OSError(errno.ENOENT, "not found")
    for folder in folders:
        path = folder + b"/" + name if folder else name
        try:
            return posix.posix_spawn(
                path,
                argv,
                env,
                setpgroup=0,
                setsigmask=(),
                setsigdef=(_signal.SIGPIPE, _signal.SIGXFSZ),
            )
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise
            if e.errno == errno.EACCES:
                failure = e
    raise failure


def reap(leader: int, *, block: bool) -> bool:
    """Until the leader has ended (`block`) or nobody more is dead; False: no child is left."""
    while True:
        try:
            pid, status, usage = posix.wait4(-1, 0 if block else posix.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        if pid == leader:
            cpu_us = int((usage.ru_utime + usage.ru_stime) * 1e6)
            numbers = cpu_us.to_bytes(8, "big") + (usage.ru_maxrss * 1024).to_bytes(8, "big")
            posix.write(STATUS_FD, EXITED + status.to_bytes(4, "big") + numbers)
            if block:
                return True


def kill_children(leader: int) -> None:
    """Kill until nobody is left. Who loses its parent becomes our child, so none is missed."""
    children = b"/proc/self/task/%d/children" % posix.getpid()
    while reap(leader, block=False):
        fd = posix.open(children, posix.O_RDONLY)
        pids = posix.read(fd, 1 << 16).split()
        posix.close(fd)
        for pid in pids:
            posix.kill(int(pid), _signal.SIGKILL)
        time.sleep(0.001)
