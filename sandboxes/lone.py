"""Boxes that are a bwrap each, with a Python of their own: where no zygote can make them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sandboxes.boxd.namespaces import KERNEL_SETTINGS
from sandboxes.bundle import PYTHON, boot_argv
from sandboxes.bwrap import environment, start_bwrap
from sandboxes.cgroups import BoxCgroup, Cgroups, limits_without
from sandboxes.local import LocalBackend, LocalBox, await_end
from sandboxes.spec import MIB, SandboxSpec

_OOM_FILE = "/run/agentrl/oom"


class LoneBox(LocalBox):
    def __init__(
        self, backend: LocalBackend, bwrap: str, cgroups: Cgroups, spec: SandboxSpec
    ) -> None:
        super().__init__(backend, spec)
        self._bwrap = bwrap
        self._cgroups = cgroups
        self._cgroup: BoxCgroup | None = None

    def popen(self, stream: socket.socket) -> subprocess.Popen[bytes]:
        if self._cgroups.parents:
            self._cgroup = self._cgroups.make(self.box_id, self.spec)
        return start_bwrap(
            self._bwrap,
            boot_argv(PYTHON, *self._boxd_arguments()),
            spec=self.spec,
            options=[*self._namespaces(), *self._mounts(), *self._environment()],
            stdin=stream.fileno(),
            stdout=stream.fileno(),
            groups=self._cgroup.procs_files if self._cgroup else (),
        )

    def _namespaces(self) -> Iterator[str]:
        user = str(self.spec.user)
        yield from ("--uid", user, "--gid", user, "--disable-userns")

    def _mounts(self) -> Iterator[str]:
        spec = self.spec
        for name in KERNEL_SETTINGS:
            if os.path.exists(f"/proc/{name}"):
                yield from ("--ro-bind", f"/proc/{name}", f"/proc/{name}")
        small = min(spec.disk_bytes, 64 * MIB)
        for folder, size in ((spec.workdir, spec.disk_bytes), ("/tmp", small), ("/dev/shm", small)):
            yield from ("--size", str(size), "--tmpfs", folder)
        if self._cgroup and self._cgroup.oom_file:
            yield from ("--ro-bind", str(self._cgroup.oom_file), _OOM_FILE)

    def _environment(self) -> Iterator[str]:
        for key, value in environment(self.spec).items():
            yield from ("--setenv", key, value)

    def _boxd_arguments(self) -> Iterator[str]:
        yield "isolated=1"
        if self._cgroup and self._cgroup.oom_file:
            yield f"oom={_OOM_FILE}"
        for name, value in limits_without(self._cgroups, self.spec).items():
            yield f"{name}={value}"

    def cause_of_death(self) -> str:
        if self._cgroup is not None and self._cgroup.num_oom_kills():
            return f"(it ran out of its {self.spec.memory_bytes} bytes of memory)"
        return super().cause_of_death()

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill boxd, the box's init, and all of the box with it; bwrap then reaps it and ends.

        Killed first, bwrap would leave its dead child to the machine's init.
        """
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        await_end(process)

    def clean_up(self) -> None:
        if self._cgroup is not None:
            self._cgroup.remove()
