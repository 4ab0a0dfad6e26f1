"""The bubblewrap backend: boxes made of Linux namespaces, without an engine, root or set-up.

A box sees the host's /usr read-only, the running Python, an empty /workspace, /tmp and /dev/shm of
limited size, and nothing else: no network, no host process, no environment of ours, no way to
make further user namespaces. Where control groups can be written, memory, processes and CPU of
the whole box are limited; elsewhere `capabilities()` says that they are not.

Boxes are forks of a zygote where one can be made on this machine, which is tried first; elsewhere
each is a bwrap of its own, which costs several times as much.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from sandboxes.box import BoxHost
from sandboxes.bwrap import working_bwrap
from sandboxes.cgroups import Cgroups, sweep_groups
from sandboxes.family import Families
from sandboxes.forked import ForkedBox
from sandboxes.local import LocalBackend
from sandboxes.lone import LoneBox
from sandboxes.sandbox import Capabilities
from sandboxes.spec import SandboxSpec
from sandboxes.zygote import BYTES_PER_FILE, problem_of_forking

log = logging.getLogger(__name__)


class BubblewrapBackend(LocalBackend):
    name = "bubblewrap"

    def __init__(self, cgroups: Cgroups | None = None, *, may_fork: bool = True) -> None:
        """Blocks for some 100 ms: finds out what this machine allows."""
        super().__init__()
        self.bwrap = working_bwrap()
        self.cgroups = Cgroups.find() if cgroups is None else cgroups
        sweep_groups()
        self._families: Families | None = None
        problem = problem_of_forking(self.bwrap, self.cgroups) if may_fork else "not wanted"
        if problem is None:
            self._families = Families(self.bwrap, self.in_thread)
        elif may_fork:
            log.warning("boxes cost more here, each starts its own Python problem=%r", problem)

    @property
    def forks(self) -> bool:
        return self._families is not None

    def new_host(self, spec: SandboxSpec) -> BoxHost:
        if self._families is None:
            return LoneBox(self, self.bwrap, self.cgroups, spec)
        return ForkedBox(self._families, self.cgroups, self.in_thread, spec)

    def capabilities(self, spec: SandboxSpec | None = None) -> Capabilities:
        has = self.cgroups.parents
        return Capabilities(
            network=True,
            memory="memory" in has,
            pids="pids" in has,
            cpus="cpu" in has,
            disk=True,
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        yield "The kernel is shared with the host, and no system call filter is set."
        if self._families is None:
            yield "The number of files is not limited, only their bytes; they count as memory."
            yield "Each box starts a Python of its own, as none can be forked from another here."
        else:
            yield f"A box holds one file for each {BYTES_PER_FILE} bytes of its disk limit."
        yield "`image` is not used: a box sees the host's /usr."
        has = self.cgroups.parents
        if has.keys() >= {"memory", "pids", "cpu"}:
            return
        where = (
            "no control group here hands that down (run as root, or with "
            "`systemd-run --user --scope -p Delegate=yes`)"
        )
        if "memory" not in has:
            yield f"Memory is limited for each process, not as a sum: {where}."
        if "pids" not in has:
            yield f"Processes are limited by RLIMIT_NPROC, which root's boxes escape: {where}."
        if "cpu" not in has:
            yield f"CPU time is not limited: {where}."

    async def close(self) -> None:
        try:
            await self.close_boxes()
        finally:
            if self._families is not None:
                await self._families.close()
            await super().close()
