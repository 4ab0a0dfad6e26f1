"""Versions of the weights, published by training and pulled by whoever is ready for them.

The store holds references only: the arrays lie in the object store, in shared memory on a node and
copied from peer to peer between nodes. A version stays until `keep` newer ones are published.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import ray

Ref = ray.ObjectRef[dict[str, Any]]


class Published(NamedTuple):
    version: int
    refs: list[Ref]
    """One reference, in a list so that passing it on does not fetch it."""


class ParameterStore:
    """Ray actor: pull-based, versioned weights."""

    def __init__(self, *, keep: int = 2) -> None:
        self._keep = keep
        self._versions: OrderedDict[int, list[Ref]] = OrderedDict()

    def publish(self, version: int, refs: list[Ref]) -> None:
        assert version > self.newest(), f"version {version} published after {self.newest()}"
        self._versions[version] = refs
        while len(self._versions) > self._keep:
            self._versions.popitem(last=False)

    def newest(self) -> int:
        """The newest version, which may be asked for before there is one: -1."""
        return next(reversed(self._versions), -1)

    def pull(self, version: int | None = None) -> Published:
        """The version asked for, or the newest; LookupError when it is not held (any more)."""
        if not self._versions:
            raise LookupError("no weights have been published yet")
        wanted = self.newest() if version is None else version
        if wanted not in self._versions:
            held = ", ".join(map(str, self._versions))
            raise LookupError(f"weights of version {wanted} are not held; held: {held}")
        return Published(wanted, self._versions[wanted])
