"""Who owns which accelerator: one owner each, and one graph over all moves that are open.

A move releases accelerators and acquires others. All open moves are looked at together: an
accelerator is acquired only after its owner released it, and releasing never waits for anything,
so moves that swap accelerators, or hand them round in a ring, cannot block each other. (One graph
per role can: Nereus, arXiv 2609.34645, saw 34-62 % of overlapping transitions finish that way, and
all of them with one graph.)

A lease ends only when its owner says so or is known to be dead. What is unknown is still owned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

Accelerator = str


class Leases:
    def __init__(self) -> None:
        self._owners: dict[Accelerator, str] = {}
        self._claims: dict[Accelerator, str] = {}
        """Worker that will acquire an accelerator, by open move."""

    def owner(self, accelerator: Accelerator) -> str | None:
        return self._owners.get(accelerator)

    def held_by(self, worker_id: str) -> frozenset[Accelerator]:
        return frozenset(name for name, owner in self._owners.items() if owner == worker_id)

    def take(self, worker_id: str, accelerators: Iterable[Accelerator]) -> None:
        """Become the owner of accelerators that nobody owns."""
        for name in accelerators:
            owner = self._owners.get(name)
            assert owner in (None, worker_id), f"{name} is owned by {owner}, not {worker_id}"
            self._owners[name] = worker_id
            if self._claims.get(name) == worker_id:
                del self._claims[name]

    def release(self, worker_id: str) -> None:
        """The worker owns nothing any more: it let go, or it is dead."""
        for name in self.held_by(worker_id):
            del self._owners[name]

    def conflict(
        self, worker_id: str, wanted: Iterable[Accelerator], leaving: Collection[str]
    ) -> str | None:
        """Why a move cannot be opened: an accelerator is claimed, or its owner is not leaving.

        `leaving` are workers whose open moves will release all they own.
        """
        for name in wanted:
            claimant = self._claims.get(name)
            if claimant not in (None, worker_id):
                return f"{name} is claimed by {claimant}"
            owner = self._owners.get(name)
            if owner not in (None, worker_id) and owner not in leaving:
                return f"{name} is owned by {owner}, which is not leaving it"
        return None

    def claim(self, worker_id: str, wanted: Iterable[Accelerator]) -> None:
        for name in wanted:
            self._claims[name] = worker_id

    def unclaim(self, worker_id: str) -> None:
        """The move is over or given up."""
        self._claims = {name: who for name, who in self._claims.items() if who != worker_id}

    def can_take(self, worker_id: str, wanted: Iterable[Accelerator]) -> bool:
        return all(self._owners.get(name) in (None, worker_id) for name in wanted)
