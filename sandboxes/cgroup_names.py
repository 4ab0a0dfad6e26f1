"""The names of boxes' control groups, by which they are found again wherever they are.

A name has its owner's identity and the namespace in which the owner's pid means something. A host
sees the groups of its containers, and a container may be shown those of its host: there the pid is
unknown or somebody else's, and who took the box for a dead owner's would end one that is in use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandboxes.ownership import local_name_may_live, pid_namespace

_NAME = re.compile(r"agentrl-(?P<namespace>\d+)-(?P<box>\d+-\d+-\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGroup:
    folder: Path
    box: str
    namespace: int

    @property
    def is_judged_here(self) -> bool:
        """Whether its owner would be seen from here if it lived."""
        return self.namespace == pid_namespace()

    @property
    def may_live(self) -> bool:
        return not self.is_judged_here or local_name_may_live(self.box)


def group_name(box: str) -> str:
    return f"agentrl-{pid_namespace()}-{box}"


def groups_below(root: Path) -> Iterator[FoundGroup]:
    """Those that we may remove, of other sessions and services too, and of containers."""
    for parent, names, _ in os.walk(root):
        matches = [match for name in names if (match := _NAME.fullmatch(name))]
        if matches and os.access(parent, os.W_OK):
            for match in matches:
                folder, namespace = Path(parent, match[0]), int(match["namespace"])
                yield FoundGroup(folder=folder, box=match["box"], namespace=namespace)
        names[:] = [name for name in names if not _NAME.fullmatch(name)]
