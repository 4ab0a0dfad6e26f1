"""Machines that the cluster is about to take away, and until when.

The autoscaler, the notice of a cloud, SIGTERM to `ray start --block` and `ray drain-node` all come to
the same: Ray marks the node as draining, places nothing there any more, and leaves it to whoever has
processes there to take them away. It tells nobody, so it is asked here, once for all of a run's
processes. There is no public call for that; this one is what Ray's own libraries ask.

Invariants
- The driver's own machine is nobody's to leave: the run ends with it, and so it is told of apart.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import NoReturn

import ray
import structlog

log = structlog.get_logger(__name__)

POLL_S = 1.0
NodeId = str


def draining_nodes() -> dict[NodeId, float | None]:
    """When each of them goes, by the clock on the wall; None where nobody said."""
    found: dict[NodeId, int] = ray._private.state.state.get_draining_nodes()
    return {node_id: until_ms / 1000 if until_ms else None for node_id, until_ms in found.items()}


class Drains:
    """`watch()` must be running."""

    def __init__(self, *, own_node: NodeId, grace_s: float) -> None:
        """`grace_s`: what is left to a node that is taken away at no particular time."""
        self._own_node = own_node
        self._grace_s = grace_s
        self._until_t: dict[NodeId, float] = {}
        self._is_told: defaultdict[NodeId, asyncio.Event] = defaultdict(asyncio.Event)

    async def watch(self) -> NoReturn:
        while True:
            self.note(await asyncio.to_thread(draining_nodes))
            await asyncio.sleep(POLL_S)

    def note(self, found: Mapping[NodeId, float | None]) -> None:
        """Nodes that are draining now. None ever comes back from that."""
        now = time.time()
        for node_id in found.keys() - self._until_t.keys():
            until_t = found[node_id]
            self._until_t[node_id] = now + self._grace_s if until_t is None else until_t
            log.warning("a node will be taken away", node=node_id, left_s=self._left_s(node_id))
            self._is_told[node_id].set()

    def left_s(self, node_id: NodeId) -> float | None:
        """Seconds that are left to processes on a node; None where they may stay."""
        is_leaving = node_id in self._until_t and node_id != self._own_node
        return self._left_s(node_id) if is_leaving else None

    async def of(self, node_id: NodeId) -> float:
        """Returns when processes on a node must go: the seconds that they have left."""
        if node_id == self._own_node:
            await asyncio.Event().wait()
        await self._is_told[node_id].wait()
        return self._left_s(node_id)

    async def of_the_driver(self) -> float:
        """Returns when the driver's own machine will be taken away: the seconds that it has left."""
        await self._is_told[self._own_node].wait()
        return self._left_s(self._own_node)

    def _left_s(self, node_id: NodeId) -> float:
        return max(0.0, self._until_t[node_id] - time.time())
