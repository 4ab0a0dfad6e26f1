"""Turns that are ready and have no slot yet, in lanes that nobody inside may overtake.

A lane is a heap; its head goes first, and a head that cannot be served keeps the rest of its lane
waiting, so the order a policy gives is also its promise against starvation. Entries are never
searched for: one whose ticket is no longer its trajectory's is void and dropped when it surfaces.
Entries of equal order go by arrival, and a re-ordered one keeps its arrival.
"""

from __future__ import annotations

import heapq

from scheduler.trajectories import Trajectory

_Entry = tuple[float, int, int, Trajectory]
"""Order, arrival, ticket."""


class WaitingLanes:
    def __init__(self) -> None:
        self._lanes: dict[tuple[str, str], list[_Entry]] = {}
        self._tickets = 0

    @property
    def num_pushed(self) -> int:
        return self._tickets

    def push(self, trajectory: Trajectory, lane: str, order: float) -> None:
        """Let a turn wait; one that waits already moves to its new place."""
        self._tickets += 1
        if trajectory.ticket < 0:
            trajectory.arrival = self._tickets
        trajectory.ticket = self._tickets
        heap = self._lanes.setdefault((trajectory.submitted.job, lane), [])
        heapq.heappush(heap, (order, trajectory.arrival, self._tickets, trajectory))

    def withdraw(self, trajectory: Trajectory) -> None:
        trajectory.ticket = -1

    def lanes(self) -> list[tuple[str, str]]:
        """Job and name of each lane that may hold somebody, in the order of their first use."""
        return [name for name, heap in self._lanes.items() if heap]

    def head(self, lane: tuple[str, str]) -> Trajectory | None:
        heap = self._lanes[lane]
        while heap:
            _, _, ticket, trajectory = heap[0]
            if trajectory.ticket == ticket:
                return trajectory
            heapq.heappop(heap)
        return None

    def pop(self, lane: tuple[str, str]) -> None:
        """Remove the head that `head` has just returned."""
        heapq.heappop(self._lanes[lane])[3].ticket = -1
