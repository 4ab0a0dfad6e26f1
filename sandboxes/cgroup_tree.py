"""Where in the one tree of version 2 boxes can have their groups.

The kernel's rule: a group either holds processes or hands controllers down to its children, and
only the root of all may do both. So our own group, which holds us, hands nothing down unless its
processes first move into a child of it. Looking for a place changes groups where none would do
otherwise, so it is for who is about to make boxes:

1. Our own group, where systemd says that it is delegated: limits set on us then hold for boxes
   too, and systemd leaves what is below it alone.
2. The nearest group above us that hands down all, or is willing to.
3. Our own group, the only one to be seen in a container.

Where nobody has all, the one that hands down most.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from sandboxes.cgroup_names import group_name
from sandboxes.ownership import this_process

WORKERS = "workers-of-agentrl"
"""The child that holds the processes of a group which was divided; it has no limits of its own."""
_CONTROLLERS = frozenset({"cpu", "memory", "pids"})
_DELEGATION_MARKS = ("user.delegate", "trusted.delegate")
_MAX_MOVES = 10
"""Processes that fork while they are moved leave children behind, which are moved next time."""


def place_for_groups(root: Path, own: str) -> tuple[Path, set[str]] | None:
    """A group to make those of boxes in, and the controllers that it hands down to them."""
    here = root / own.lstrip("/")
    wanted = _words(root / "cgroup.controllers") & _CONTROLLERS
    line = [group for group in (here, *here.parents) if group.is_relative_to(root)]
    line = [group for group in line if wanted and _lets_us_in(group)]
    may_divide = here in line
    if may_divide and _is_delegated(here) and _divide(here, wanted):
        return here, wanted
    for group in line:
        if wanted <= handed_down(group):
            return group, wanted
    for group in line:
        with contextlib.suppress(OSError):
            hand_down(group, wanted)
            return group, wanted
    best = max(line, key=lambda group: len(wanted & handed_down(group)), default=None)
    has = wanted & handed_down(best) if best else set()
    ours = wanted & _words(here / "cgroup.controllers")
    if may_divide and len(ours) > len(has) and _divide(here, ours):
        return here, ours
    return (best, has) if best and has else None


def handed_down(group: Path) -> set[str]:
    return _words(group / "cgroup.subtree_control")


def hand_down(group: Path, controllers: Iterable[str]) -> None:
    """Raises `OSError` where the group has not got them all, or has processes."""
    if missing := sorted(set(controllers) - handed_down(group)):
        write(group / "cgroup.subtree_control", " ".join(f"+{name}" for name in missing))


def write(file: Path, text: str) -> None:
    """A file of the kernel's: it is never created."""
    with file.open("r+") as opened:
        opened.write(text)


def can_make_groups(parent: Path) -> bool:
    probe = parent / group_name(f"{this_process().local_name}-{secrets.token_hex(4)}")
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def _lets_us_in(group: Path) -> bool:
    """Who moves a process needs the right to in the group above both places."""
    return os.access(group / "cgroup.procs", os.W_OK) and can_make_groups(group)


def _is_delegated(group: Path) -> bool:
    for name in _DELEGATION_MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _divide(group: Path, controllers: set[str]) -> bool:
    """Move the group's processes, ours among them, into a child, so that it can hand down."""
    if not controllers <= _words(group / "cgroup.controllers"):
        return False
    workers = group / WORKERS
    with contextlib.suppress(OSError):
        workers.mkdir(exist_ok=True)
        for _ in range(_MAX_MOVES):
            _move_processes(group, workers)
            try:
                hand_down(group, controllers)
            except OSError as e:
                if e.errno == errno.EBUSY:
                    continue
                raise
            return True
    with contextlib.suppress(OSError):
        _move_processes(workers, group)
        workers.rmdir()
    return False


def _move_processes(source: Path, target: Path) -> None:
    for pid in _words(source / "cgroup.procs") - {"0"}:  # of another pid namespace
        with contextlib.suppress(ProcessLookupError):
            write(target / "cgroup.procs", pid)


def _words(file: Path) -> set[str]:
    try:
        return set(file.read_text().split())
    except OSError:
        return set()
