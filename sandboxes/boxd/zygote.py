"""The zygote: a boxd that never serves a box but forks into one for each that is asked for.

Python is started and boxd's program loaded once; a box then costs a fork, its namespaces and its
mounts. The zygote runs no command, knows no secret and sits where no box can see it: it is the
init of a process namespace above theirs. When it ends, for whatever reason, all of them do.

It listens to messages on the socket of its argument, each with a box's descriptors: its stream, the
file that counts its out-of-memory kills (maybe), and the groups to join. It answers with a descriptor of
the box's process. A box that cannot be made says why over the same socket.
"""

import _signal  # type: ignore[import-not-found]  # has no stub, and `signal` costs 8 ms
import _socket
import gc
import marshal
import posix
import sys

from sandboxes.boxd.main import serve
from sandboxes.boxd.namespaces import (
    CLONE_NEWPID,
    LIBC,
    become_user,
    drop_privileges,
    forget_neighbours,
    make_mounts_private,
    mount_empty,
    mount_proc,
    mount_terminals,
    must,
    start_loopback,
)
from sandboxes.boxd.supervisor import MAX_FDS

HELLO, FORKED, FAILED = b"H", b"F", b"E"
"""What it says: that it listens, then of each box, with its id, that it is there or why not."""
MAX_REQUEST_FDS = 8
MAX_MESSAGE_BYTES = 128 * 1024
OOM_FD = 3
INT_BYTES = 4


def zygote(args: "list[str]") -> None:
    control = _socket.socket(fileno=int(args[0]))
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # who needs a box's end holds its descriptor
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    make_mounts_private()
    own_processes = posix.open(b"/proc/self/ns/pid", posix.O_RDONLY | posix.O_CLOEXEC)
    gc.collect()
    gc.freeze()  # or a box's first collection would copy all of our memory
    control.send(HELLO)
    while True:
        message, fds = receive(control)
        if not message:
            return
        box_id = message[:INT_BYTES]
        try:
            must(LIBC.unshare, CLONE_NEWPID)
            pid = posix.fork()
            if pid == 0:
                be_a_box(control, message, fds)
            must(LIBC.setns, own_processes, CLONE_NEWPID)
            pidfd = posix.pidfd_open(pid)
        except OSError as e:
            control.send(FAILED + box_id + str(e).encode())
        else:
            answer_with(control, FORKED + box_id, pidfd)
            posix.close(pidfd)
        for fd in fds:
            posix.close(fd)


def receive(control: _socket.socket) -> "tuple[bytes, list[int]]":
    space = _socket.CMSG_SPACE(MAX_REQUEST_FDS * INT_BYTES)
    message, ancillary, _, _ = control.recvmsg(MAX_MESSAGE_BYTES, space, _socket.MSG_CMSG_CLOEXEC)
    fds = []
    for _, _, data in ancillary:
        for start in range(0, len(data), INT_BYTES):
            fds.append(int.from_bytes(data[start : start + INT_BYTES], sys.byteorder))
    return message, fds


def answer_with(control: _socket.socket, answer: bytes, fd: int) -> None:
    rights = fd.to_bytes(INT_BYTES, sys.byteorder)
    control.sendmsg([answer], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])


def be_a_box(control: _socket.socket, message: bytes, fds: "list[int]") -> None:
    """Does not return."""
    try:
        try:
            limits, has_oom_file = set_up(message, fds)
        except OSError as e:
            control.send(FAILED + message[:INT_BYTES] + str(e).encode())
            return
        posix.closerange(OOM_FD + has_oom_file, MAX_FDS)
        serve(limits, is_isolated=True, oom_fd=OOM_FD if has_oom_file else -1)
    except Exception:  # noqa: BLE001  # a fork never goes on as the zygote
        sys.excepthook(*sys.exc_info())
    finally:
        posix._exit(0)


def set_up(message: bytes, fds: "list[int]") -> "tuple[dict[str, int], bool]":
    """From a copy of the zygote to an unprivileged init of a box, inside its limits."""
    request = marshal.loads(message[INT_BYTES:])
    stream, *rest = fds
    oom_file = rest.pop(0) if request["has_oom_file"] else -1
    for group in rest:
        posix.write(group, b"0")
    forget_neighbours()
    settings = mount_proc()
    for folder, num_bytes, num_files in request["folders"]:
        mount_empty(folder, num_bytes, num_files)
    mount_terminals()
    start_loopback()
    posix.setsid()
    posix.chdir(request["workdir"])
    become_user(request["user"], settings)
    drop_privileges()
    posix.environ.clear()
    posix.environ.update(request["environment"])
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    posix.dup2(stream, 0)
    posix.dup2(stream, 1)
    if oom_file >= 0:
        posix.dup2(oom_file, OOM_FD, False)
    return request["limits"], oom_file >= 0
