"""The worker's end of a zygote: a process that forks into boxes, and the messages to it.

A zygote is made for one user and workdir, the parts of a spec that its root shows. It dies with
the thread that started it, and its boxes with it. After the start nothing here waits.
"""

from __future__ import annotations

import marshal
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from sandboxes.bundle import PYTHON, boot_argv, zygote_bytes
from sandboxes.bwrap import environment, start_bwrap
from sandboxes.cgroups import BoxCgroup, Cgroups, limits_without
from sandboxes.local import await_end
from sandboxes.ownership import this_process
from sandboxes.sandbox import SandboxError
from sandboxes.spec import MIB, SandboxSpec

START_TIMEOUT_S = 20.0
BYTES_PER_FILE = 4096
"""A tmpfs may hold as many files as it has blocks: a file without content costs memory too."""
MIN_FILES = 64
_MAX_ANSWER_BYTES = 64 * 1024
_FORKED = ord("F")


class Answer(NamedTuple):
    """What became of a box: a descriptor of its process, or -1 and why it could not be made."""

    box: int
    pidfd: int
    problem: str


class Zygote:
    def __init__(self, bwrap: str, spec: SandboxSpec) -> None:
        """Blocks until it listens, some 40 ms. Raises `SandboxError`."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = os.memfd_create("agentrl-zygote")
        try:
            os.write(program, zygote_bytes())
            os.lseek(program, 0, os.SEEK_SET)
            self._process = start_bwrap(
                bwrap,
                boot_argv(PYTHON, str(theirs.fileno())),
                spec=spec,
                options=["--uid", "0", "--gid", "0", "--cap-add", "ALL", *_folders(spec)],
                stdin=program,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            self.control.close()
            raise
        finally:
            os.close(program)
            theirs.close()
        self._await_hello()

    def _await_hello(self) -> None:
        self.control.settimeout(START_TIMEOUT_S)
        try:
            hello = self.control.recv(1)
        except (TimeoutError, ConnectionError):
            hello = b""
        if not hello:
            words = self.end() or "it ended and said nothing"
            raise SandboxError(f"could not start the process that forks into boxes: {words}")
        self.control.setblocking(False)

    def ask(self, box: int, request: bytes, fds: Sequence[int]) -> None:
        """Raises `BlockingIOError` when it is busy, another `OSError` when it is gone."""
        socket.send_fds(self.control, [box.to_bytes(4, "big") + request], fds)

    def answer(self) -> Answer | None:
        """The next one; None when there will be none. Raises `BlockingIOError`."""
        try:
            message, fds, _, _ = socket.recv_fds(self.control, _MAX_ANSWER_BYTES, 1)
        except ConnectionError:
            return None
        if not message:
            return None
        box = int.from_bytes(message[1:5], "big")
        if message[0] == _FORKED:
            return Answer(box, fds[0], "")
        return Answer(box, -1, message[5:].decode("utf-8", "replace"))

    def last_words(self) -> str:
        """What it and its boxes have written since they were last asked."""
        stderr = self._process.stderr
        assert stderr is not None
        try:
            os.set_blocking(stderr.fileno(), False)
            words = stderr.read(4096) or b""
        except ValueError:  # closed by whoever ends it in a thread, maybe in this moment
            return ""
        return words.decode("utf-8", "replace").strip()

    def end(self) -> str:
        """End it and all its boxes; blocks. Returns its last words."""
        self.control.close()
        try:
            await_end(self._process)
        finally:
            words = self.last_words()
            assert self._process.stderr is not None
            self._process.stderr.close()
        return words


@contextmanager
def box_request(
    spec: SandboxSpec, cgroups: Cgroups, cgroup: BoxCgroup, stream: socket.socket
) -> Iterator[tuple[bytes, list[int]]]:
    """What to ask a zygote for a box on the far end of `stream`."""
    small = min(spec.disk_bytes, 64 * MIB)
    sizes = {"/tmp": small, "/dev/shm": small, spec.workdir: spec.disk_bytes}
    oom_file = cgroup.oom_file
    request: dict[str, Any] = {
        "folders": [  # for the kernel 0 would be no limit
            (os.fsencode(folder), max(size, 1), size // BYTES_PER_FILE + MIN_FILES)
            for folder, size in sizes.items()
        ],
        "workdir": os.fsencode(spec.workdir),
        "user": spec.user,
        "environment": {
            os.fsencode(key): os.fsencode(value) for key, value in environment(spec).items()
        },
        "limits": limits_without(cgroups, spec),
        "has_oom_file": oom_file is not None,
    }
    fds = [stream.fileno()]
    try:
        if oom_file is not None:
            fds.append(os.open(oom_file, os.O_RDONLY | os.O_CLOEXEC))
        for path in cgroup.procs_files:
            fds.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        yield marshal.dumps(request), fds
    finally:
        for fd in fds[1:]:
            os.close(fd)


def problem_of_forking(bwrap: str, cgroups: Cgroups) -> str | None:
    """Why boxes cannot be forked here, or None when one was. Blocks for some 50 ms."""
    spec = SandboxSpec()
    name = f"{this_process().local_name}-{secrets.token_hex(4)}"
    ours, theirs = socket.socketpair()
    try:
        with ours, theirs, ExitStack() as undo:
            cgroup = cgroups.make(name, spec)
            undo.callback(cgroup.remove)
            zygote = Zygote(bwrap, spec)
            undo.callback(zygote.end)
            with box_request(spec, cgroups, cgroup, theirs) as (request, fds):
                zygote.ask(1, request, fds)
            theirs.close()
            ours.settimeout(START_TIMEOUT_S)
            if ours.recv(1):
                return None
            zygote.control.settimeout(START_TIMEOUT_S)
            while (answer := zygote.answer()) is not None:
                if answer.problem:
                    return answer.problem
                os.close(answer.pidfd)
            return zygote.last_words()
    except (OSError, SandboxError) as e:
        return str(e)


def _folders(spec: SandboxSpec) -> list[str]:
    return ["--dir", "/tmp", "--dir", spec.workdir]
