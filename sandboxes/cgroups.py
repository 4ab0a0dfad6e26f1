"""Limits on the sum of a box's processes, where this machine lets us write control groups.

Version 1 has a tree for each controller, version 2 has one for all. A box gets one group per
tree, below the group that this process is in, so that limits set on us hold for boxes too.
A process enters by writing to `procs_files` before it starts anything; its groups are removed
once nobody is in them. Group names begin with their owner's identity, so that those of a worker
that was killed can be told from those in use.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxes.ownership import local_name_may_live, this_process
from sandboxes.spec import SandboxSpec

PREFIX = "agentrl-"
_ROOT = Path("/sys/fs/cgroup")
_CPU_PERIOD_US = 100_000
_OOM_FILES = ("memory.events", "memory.oom_control")
REMOVAL_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxCgroup:
    """The groups of one box."""

    folders: tuple[Path, ...]

    @property
    def procs_files(self) -> tuple[Path, ...]:
        return tuple(folder / "cgroup.procs" for folder in self.folders)

    @property
    def oom_file(self) -> Path | None:
        candidates = [folder / name for folder in self.folders for name in _OOM_FILES]
        return next((path for path in candidates if path.exists()), None)

    def num_oom_kills(self) -> int:
        words = self.oom_file.read_text().split() if self.oom_file else []
        return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0

    def remove(self) -> None:
        """Blocks until the last process has left; they are being killed by now."""
        deadline = time.monotonic() + REMOVAL_TIMEOUT_S
        for folder in self.folders:
            while not _removed(folder):
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, "processes of a deleted box live on", str(folder))
                time.sleep(0.002)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as e:
        if e.errno != errno.EBUSY:
            raise
        return False
    return True


class Cgroups:
    """The places where groups of boxes can be made, by controller: memory, pids, cpu."""

    def __init__(self, parents: Mapping[str, Path], *, version: int) -> None:
        self.parents = parents
        self.version = version

    @classmethod
    def find(cls, root: Path = _ROOT, membership: str | None = None) -> Cgroups:
        """What can be written here; maybe nothing."""
        if membership is None:
            membership = Path("/proc/self/cgroup").read_text()
        own = dict(line.split(":", 2)[1:] for line in membership.splitlines())
        if (root / "cgroup.controllers").exists():
            return cls(_version_2_parents(root, own.get("", "/")), version=2)
        return cls(_version_1_parents(root, own), version=1)

    def make(self, name: str, spec: SandboxSpec) -> BoxCgroup:
        folders: dict[Path, None] = {}
        try:
            for controller, parent in self.parents.items():
                folder = parent / (PREFIX + name)
                folder.mkdir(exist_ok=folder in folders)
                folders[folder] = None
                for file, value in self._settings(controller, spec):
                    (folder / file).write_text(value)
        except OSError:
            BoxCgroup(folders=tuple(folders)).remove()
            raise
        return BoxCgroup(folders=tuple(folders))

    def _settings(self, controller: str, spec: SandboxSpec) -> list[tuple[str, str]]:
        memory, quota = str(spec.memory_bytes), int(spec.cpus * _CPU_PERIOD_US)
        match (self.version, controller):
            case (_, "pids"):
                return [("pids.max", str(spec.pids))]
            case (1, "memory"):
                settings = [("memory.limit_in_bytes", memory)]
                if _has_swap_control(self.parents["memory"]):
                    settings.append(("memory.memsw.limit_in_bytes", memory))
                return settings
            case (1, "cpu"):
                return [
                    ("cpu.cfs_period_us", str(_CPU_PERIOD_US)),
                    ("cpu.cfs_quota_us", str(quota)),
                ]
            case (2, "memory"):
                swap = (
                    [("memory.swap.max", "0")] if _has_swap_control(self.parents["memory"]) else []
                )
                return [("memory.max", memory), *swap]
            case _:
                return [("cpu.max", f"{quota} {_CPU_PERIOD_US}")]

    def sweep(self) -> None:
        """Remove the groups of workers that are gone."""
        for parent in set(self.parents.values()):
            for folder in parent.glob(PREFIX + "*"):
                if not local_name_may_live(folder.name.removeprefix(PREFIX)):
                    BoxCgroup(folders=(folder,)).remove()


def limits_without(cgroups: Cgroups, spec: SandboxSpec) -> dict[str, int]:
    """The weaker limits of each process, where control groups do not hold their sum."""
    limits = {}
    if "memory" not in cgroups.parents:
        limits["RLIMIT_AS"] = spec.memory_bytes
    if "pids" not in cgroups.parents:
        limits["RLIMIT_NPROC"] = spec.pids
    return limits


def _version_1_parents(root: Path, own: Mapping[str, str]) -> dict[str, Path]:
    parents = {}
    for controllers, path in own.items():
        for controller in {"memory", "pids", "cpu"} & set(controllers.split(",")):
            # Inside a container our path may be the host's, and the mount's top be our group.
            for parent in (root / controllers / path.lstrip("/"), root / controllers):
                if _can_make(parent):
                    parents[controller] = parent
                    break
    return parents


def _version_2_parents(root: Path, own: str) -> dict[str, Path]:
    """The nearest group above us that hands its controllers down; ours may not, as we are in it."""
    here = root / own.lstrip("/")
    for candidate in (here, *here.parents):
        if not candidate.is_relative_to(root):
            break
        has = {"memory", "pids", "cpu"} & set(_words(candidate / "cgroup.subtree_control"))
        if has and _can_make(candidate):
            return dict.fromkeys(sorted(has), candidate)
    return {}


def _has_swap_control(parent: Path) -> bool:
    names = ("memory.swap.max", "memory.memsw.limit_in_bytes")
    return any((parent / name).exists() for name in names)


def _can_make(parent: Path) -> bool:
    probe = parent / f"{PREFIX}{this_process().local_name}-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
