"""Which session holds which key/value slot, and what that slot holds.

A slot belongs to one session from its first turn until it is released or evicted. Between turns,
while tools run, it rests: its keys and values stay, so the next turn computes only what is new.

Invariants
- A slot is free, resting or in use; never two of these, and never owned by two sessions.
- Only resting sessions are evicted, the longest rested first.
- Lower slots are handed out first, which keeps the slots in use close together.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Lease(NamedTuple):
    slot: int
    reused: int
    """How many leading ids of the turn have their keys and values in the slot already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    slot: int
    ids: list[int]
    """The ids whose keys and values the slot holds, in order."""


class SlotTable:
    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots))
        self._resting: dict[str, _Rest] = {}
        """The longest rested first."""
        self._used: dict[str, int] = {}

    def is_used(self, session_id: str) -> bool:
        return session_id in self._used

    @property
    def has_room(self) -> bool:
        return bool(self._free or self._resting)

    @property
    def resting_tokens(self) -> int:
        return sum(len(rest.ids) for rest in self._resting.values())

    def lease(
        self, session_id: str, ids: Sequence[int], *, spared: Container[str] = ()
    ) -> Lease | None:
        """A slot for a turn over `ids`; None when there is none, or only those of `spared` sessions.

        At least the last id is left to compute, because its logits are wanted.
        """
        assert session_id not in self._used
        if rest := self._resting.pop(session_id, None):
            lease = Lease(rest.slot, min(common_prefix(rest.ids, ids), len(ids) - 1))
        elif self._free:
            lease = Lease(heapq.heappop(self._free), 0)
        else:
            victims = (resting for resting in self._resting if resting not in spared)
            if (victim := next(victims, None)) is None:
                return None
            lease = Lease(self._resting.pop(victim).slot, 0)
        self._used[session_id] = lease.slot
        return lease

    def rest(self, session_id: str, ids: list[int]) -> None:
        """The turn is over; the slot holds keys and values of `ids`."""
        self._resting[session_id] = _Rest(slot=self._used.pop(session_id), ids=ids)

    def release(self, session_id: str) -> None:
        """Free the slot of a resting session; one without a slot is no error."""
        assert session_id not in self._used
        if rest := self._resting.pop(session_id, None):
            heapq.heappush(self._free, rest.slot)

    def release_resting(self) -> None:
        for session_id in list(self._resting):
            self.release(session_id)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
