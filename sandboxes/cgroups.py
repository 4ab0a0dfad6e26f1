"""Limits on the sum of a box's processes, where this machine lets us write control groups.

Version 1 has a tree for each controller, version 2 has one for all (see `cgroup_tree`). A box gets
one group per tree, below the group that this process is in where that is possible, so that limits
set on us hold for boxes too.
A process enters by writing to `procs_files` before it starts anything; its groups are removed
once nobody is in them. Their names tell those of a worker that was killed from those in use.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxes.cgroup_names import group_name, groups_below
from sandboxes.cgroup_tree import can_make_groups, hand_down, place_for_groups
from sandboxes.spec import SandboxSpec

log = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
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
        """0 where the groups are removed by now."""
        oom_file = self.oom_file
        words = text_of(oom_file).split() if oom_file else []
        return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0

    def remove(self) -> None:
        """Blocks until the last process has left; they are being killed by now."""
        deadline = time.monotonic() + REMOVAL_TIMEOUT_S
        for folder in self.folders:
            while not _removed(folder):
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, "processes of a deleted box live on", str(folder))
                time.sleep(0.002)


def text_of(group_file: Path) -> str:
    """Nothing where the group is removed, maybe in this moment: the kernel says either."""
    try:
        return group_file.read_text()
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.ENODEV):
            raise
        return ""


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
    def find(cls, root: Path = ROOT, membership: str | None = None) -> Cgroups:
        """What can be written here; maybe nothing. Changes groups so that boxes have a place."""
        if membership is None:
            membership = Path("/proc/self/cgroup").read_text()
        own = dict(line.split(":", 2)[1:] for line in membership.splitlines())
        if not (root / "cgroup.controllers").exists():
            return cls(_version_1_parents(root, own), version=1)
        place = place_for_groups(root, own.get("", "/"))
        return cls(dict.fromkeys(sorted(place[1]), place[0]) if place else {}, version=2)

    def make(self, name: str, spec: SandboxSpec) -> BoxCgroup:
        folders: dict[Path, None] = {}
        try:
            for parent in set(self.parents.values()) if self.version == 2 else ():
                hand_down(parent, self.parents)  # systemd takes back what no unit of its own needs
            for controller, parent in self.parents.items():
                folder = parent / group_name(name)
                folder.mkdir(exist_ok=folder in folders)
                folders[folder] = None
                for file, value in self._settings(controller, folder, spec):
                    (folder / file).write_text(value)
        except OSError:
            BoxCgroup(folders=tuple(folders)).remove()
            raise
        return BoxCgroup(folders=tuple(folders))

    def _settings(self, controller: str, folder: Path, spec: SandboxSpec) -> list[tuple[str, str]]:
        memory, quota = str(spec.memory_bytes), int(spec.cpus * _CPU_PERIOD_US)
        match (self.version, controller):
            case (_, "pids"):
                return [("pids.max", str(spec.pids))]
            case (1, "memory"):
                settings = [("memory.limit_in_bytes", memory)]
                if (folder.parent / "memory.memsw.limit_in_bytes").exists():
                    settings.append(("memory.memsw.limit_in_bytes", memory))
                return settings
            case (1, "cpu"):
                return [
                    ("cpu.cfs_period_us", str(_CPU_PERIOD_US)),
                    ("cpu.cfs_quota_us", str(quota)),
                ]
            case (2, "memory"):
                settings = [("memory.max", memory)]
                if (folder / "memory.swap.max").exists():  # the root of all has no such file
                    settings.append(("memory.swap.max", "0"))
                return settings
            case _:
                return [("cpu.max", f"{quota} {_CPU_PERIOD_US}")]


def sweep_groups(root: Path = ROOT) -> None:
    """Remove the groups of workers that are gone, wherever their place was."""
    for group in groups_below(root):
        if group.may_live:
            continue
        try:
            BoxCgroup(folders=(group.folder,)).remove()
        except OSError as e:
            log.warning("a dead worker's box stays box=%s problem=%r", group.box, str(e))


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
                if can_make_groups(parent):
                    parents[controller] = parent
                    break
    return parents
