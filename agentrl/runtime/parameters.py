"""Versions of the weights, published by training and pulled by whoever is ready for them.

The arrays lie in Ray's object store: in shared memory on a node, and copied from peer to peer between
nodes, once a node. A version stays until `keep` newer ones are published, and after that for as long
as somebody still reads it.

Invariants
- A version that can be pulled has a copy on this actor's own node, which is the driver's: no other
  machine takes it along when it is lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]
Ref = ray.ObjectRef[Any]
"""Of `Weights`."""


class Published(NamedTuple):
    version: int
    refs: list[Ref]
    """One reference, in a list so that passing it on does not fetch it."""


class ParameterStore:
    """Ray actor: pull-based, versioned weights."""

    def __init__(self, *, keep: int = 2) -> None:
        self._keep = keep
        self._versions: OrderedDict[int, list[Ref]] = OrderedDict()
        self._copies: dict[int, Weights] = {}
        """Views into this node's shared memory, which keep it from being given away."""

    async def publish(self, version: int, refs: list[Ref]) -> None:
        """Returns when the version has its copy here, and can be pulled."""
        newest = next(reversed(self._versions), -1)
        assert version > newest, f"version {version} published after {newest}"
        self._copies[version] = await refs[0]
        self._versions[version] = refs
        while len(self._versions) > self._keep:
            oldest, _ = self._versions.popitem(last=False)
            del self._copies[oldest]

    async def lifeline(self) -> None:
        """Never returns; it fails when Ray has ended this run's actors."""
        await asyncio.Event().wait()

    async def newest(self) -> int:
        """The newest version, which may be asked for before there is one: -1."""
        return next(reversed(self._versions), -1)

    async def pull(self, version: int | None = None) -> Published:
        """The version asked for, or the newest; LookupError when it is not held (any more)."""
        if not self._versions:
            raise LookupError("no weights have been published yet")
        wanted = next(reversed(self._versions)) if version is None else version
        if wanted not in self._versions:
            held = ", ".join(map(str, self._versions))
            raise LookupError(f"weights of version {wanted} are not held; held: {held}")
        return Published(wanted, self._versions[wanted])
