"""What an engine is, as far as boxes differ by it: from what it says of itself when it is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandboxes.spec import SandboxSpec

LIMITS = ("MemoryLimit", "PidsLimit", "CpuCfsQuota")
"""By the names that an engine has for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    info: Mapping[str, Any]
    is_podman: bool

    @property
    def has_cgroup_2(self) -> bool:
        return self.info.get("CgroupVersion") == "2"

    @property
    def oom_file(self) -> str:
        """Where a box can read how often the kernel has killed for want of memory."""
        name = "memory.events" if self.has_cgroup_2 else "memory/memory.oom_control"
        return f"/sys/fs/cgroup/{name}"

    @property
    def enforced(self) -> frozenset[str]:
        """Which of `LIMITS` hold. Podman without root claims all of them under cgroup v1 as well,
        where only root may set them."""
        if self.info.get("Rootless") and self.info.get("CgroupVersion") == "1":
            return frozenset()
        return frozenset(name for name in LIMITS if self.info.get(name))

    def address_space(self, spec: SandboxSpec) -> int | None:
        """Bytes that each process may map, where the memory of all of them has no limit."""
        return None if "MemoryLimit" in self.enforced else spec.memory_bytes

    def is_gvisor(self, runtime: str | None) -> bool:
        """By its name or program, `runsc`; who names no runtime gets the engine's default one."""
        name = runtime or str(self.info.get("DefaultRuntime") or "")
        known = (self.info.get("Runtimes") or {}).get(name) or {}
        program = str(known.get("path") or known.get("runtimeType") or "")
        return "runsc" in name or "runsc" in program.rpartition("/")[2]
