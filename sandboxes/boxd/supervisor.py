"""The supervisor: a forked process that runs a command and is the reaper of all that it starts.

A fork costs more than everything else in a call, so a supervisor goes on to the next command when
nothing is left of the last one; it, not boxd, then holds the pipes between the commands.
"""

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

STATUS_FD, CONTROL_FD, TURN_FD = 3, 4, 9
COMMAND_FDS = {0, 1, 2, TURN_FD}
EXITED, NOT_STARTED = b"X", b"E"
CLEAN, NOT_CLEAN = b"\1", b"\0"
"""What a supervisor reports: how it went, whether nothing is left of the command (so that the
supervisor takes another one), then wait status, cpu and peak memory, or errno."""
MAX_FDS = 4096
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36

KILL_SIGNAL = _signal.SIGUSR1
"""Asks a supervisor to kill its command. Blocked until it can, so that none comes too early."""


class KillTree(BaseException):
    """Raised in a supervisor by the kill signal."""


def prepare_supervisors() -> None:
    """In boxd, before the first fork. No signal of a command's is to end us or a supervisor: Linux
    keeps those that are not handled from a box's init, but gVisor does not, and not all are init.
    """
    _signal.signal(KILL_SIGNAL, on_kill_signal)
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())


def on_kill_signal(signum: int, frame: object) -> None:
    _signal.signal(KILL_SIGNAL, _signal.SIG_IGN)
    raise KillTree


def prctl(option: int, value: int) -> bool:
    if not HAS_CTYPES:
        return False
    call = _ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl")  # type: ignore[arg-type]  # None: us
    return bool(_ctypes.call_function(call, (option, value, 0, 0, 0)) == 0)


def supervise(fds: "dict[int, int]", request: "bytes | None") -> None:
    """Run the one command of `request`, or one after another as they come over CONTROL_FD.

    `fds` are our descriptors to be: stdin, stdout, stderr, STATUS_FD, and maybe one more.
    """
    for target, source in fds.items():
        posix.dup2(source, target, target in COMMAND_FDS)
    more = max(fds)
    posix.set_inheritable(more, more in COMMAND_FDS)  # dup2 leaves it alone if it was there
    posix.closerange(STATUS_FD + 1, more)
    posix.closerange(more + 1, MAX_FDS)
    is_reaper = prctl(PR_SET_CHILD_SUBREAPER, 1)
    posix.setsid()
    prefer_for_oom_killer()
    workdir = posix.open(b".", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    leader = 0
    is_last = request is not None
    try:
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (KILL_SIGNAL,))
        while True:
            todo = request if is_last else read_request()
            if todo is None:
                return
            posix.fchdir(workdir)
            for fd in (1, 2):  # the last command may have changed what they share
                posix.set_blocking(fd, True)
            leader = 0
            try:
                leader = spawn(*command_of(todo), {})
            except OSError as e:
                code = (e.errno or errno.EINVAL).to_bytes(4, "big")
                posix.write(STATUS_FD, NOT_STARTED + CLEAN + code)
            else:
                if is_last:
                    # The command alone holds its pipes, so that their end of file means its end.
                    close_all(COMMAND_FDS & fds.keys())
                is_last = not reap_until(leader) or is_last
            if is_last:
                posix.closerange(0, STATUS_FD)
                while has_children():  # so that what it left behind is still ours to kill
                    posix.wait4(-1, 0)
                return
    except KillTree:
        if is_reaper:
            kill_children(leader)
        else:
            time.sleep(60)  # boxd climbs the ladder


def close_all(fds: "set[int]") -> None:
    for fd in fds:
        posix.close(fd)


def read_request() -> "bytes | None":
    """The next command for a supervisor that serves many; None when there will be none."""
    data = posix.read(CONTROL_FD, 4)
    if not data:
        return None
    left = int.from_bytes(data, "big")
    data = b""
    while len(data) < left:
        data += posix.read(CONTROL_FD, left - len(data))
    return data


def command_of(request: bytes) -> "tuple[list[bytes], dict[bytes, bytes], bytes]":
    """argv, environment and folder: a count of arguments, then words between NULs."""
    num_args = int.from_bytes(request[:2], "big")
    cwd, *words = request[2:].split(b"\0")
    env = dict(posix.environ)
    for word in words[num_args:]:
        key, _, env[key] = word.partition(b"=")
    return words[:num_args], env, cwd


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


_SETTABLE = tuple({*range(1, 32)} - {_signal.SIGKILL, _signal.SIGSTOP})
"""Whoever started the worker may ignore any of these, as `nohup` does; commands start afresh."""


def spawn(argv: "list[bytes]", env: "dict[bytes, bytes]", cwd: bytes, fds: "dict[int, int]") -> int:
    """Start the leader in its own process group, found along its own PATH, with these as its
    descriptors; without any, it gets ours."""
    redirections = [(posix.POSIX_SPAWN_DUP2, source, target) for target, source in fds.items()]
    posix.chdir(cwd or b".")
    name = argv[0]
    folders = [b""] if b"/" in name else env.get(b"PATH", b"/usr/bin:/bin").split(b":")
    failure = OSError(errno.ENOENT, "not found")
    for folder in folders:
        path = folder + b"/" + name if folder else name
        if folder and not posix.access(path, posix.F_OK):
            continue  # to find that out by a fork costs a tenth of a call
        try:
            return posix.posix_spawn(
                path,
                argv,
                env,
                file_actions=redirections,
                setpgroup=0,
                setsigmask=(),
                setsigdef=_SETTABLE,
            )
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise
            if e.errno == errno.EACCES:
                failure = e
    raise failure


def reap_until(leader: int) -> bool:
    """Wait for the leader's end and report it. True: nothing that it started is left."""
    pid = 0
    while pid != leader:
        pid, status, usage = posix.wait4(-1, 0)
    is_clean = not has_children()
    cpu_s = usage.ru_utime + usage.ru_stime
    clean = CLEAN if is_clean else NOT_CLEAN
    posix.write(STATUS_FD, end_record(clean, status, cpu_s, usage.ru_maxrss))
    return is_clean


def has_children() -> bool:
    """After reaping those that are dead already."""
    try:
        while posix.waitpid(-1, posix.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def end_record(clean: bytes, status: int, cpu_s: float, peak_kib: int) -> bytes:
    numbers = int(cpu_s * 1e6).to_bytes(8, "big") + (peak_kib * 1024).to_bytes(8, "big")
    return EXITED + clean + status.to_bytes(4, "big") + numbers


def children() -> "list[int]":
    us = posix.getpid()
    try:
        fd = posix.open(b"/proc/self/task/%d/children" % us, posix.O_RDONLY)
    except FileNotFoundError:  # some kernels are built without it, and older gVisors have none
        return [pid for pid in processes() if parent_of(pid) == us]
    pids = posix.read(fd, 1 << 16).split()
    posix.close(fd)
    return [int(pid) for pid in pids]


def processes() -> "list[int]":
    return [int(name) for name in posix.listdir("/proc") if name.isdigit()]


def parent_of(pid: int) -> int:
    """0 when it has ended."""
    try:
        fd = posix.open(b"/proc/%d/stat" % pid, posix.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(posix.read(fd, 4096).rpartition(b")")[2].split()[1])
    except OSError:
        return 0
    finally:
        posix.close(fd)


def kill_children(leader: int) -> None:
    """Kill until nobody is left. Who loses its parent becomes our child, so none is missed."""
    while True:
        for pid in children():
            posix.kill(pid, _signal.SIGKILL)
        try:
            dead, status, usage = posix.wait4(-1, 0)
        except ChildProcessError:
            return
        if dead == leader:
            cpu_s = usage.ru_utime + usage.ru_stime
            posix.write(STATUS_FD, end_record(NOT_CLEAN, status, cpu_s, usage.ru_maxrss))
