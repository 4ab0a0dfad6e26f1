"""Counts of ends and survivals by bin, with forgetting: one node of a tree.

A residual is watched as it grows: entering a bin is one survival of all bins before, ending in it
is one end. So an attempt that still runs teaches as much as its tokens so far allow, and no more
(the Kaplan-Meier estimate, with right-censoring handled by construction). Counting only finished
attempts would under-predict whenever a run is young or drifts, since short ones finish first.

Forgetting is exponential in the number of attempts that have ended: later counts weigh more, which
is the same as old ones fading, and costs nothing when nothing happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from scheduler.residual import NUM_BINS


@dataclass(slots=True)
class SurvivalNode:
    ended: list[float] = field(default_factory=lambda: [0.0] * NUM_BINS)
    entered: list[float] = field(default_factory=lambda: [0.0] * NUM_BINS)
    """Of those that entered a bin and are still in it, nothing is known of its end yet; they are
    counted as entered once they leave it, by ending or by moving on."""

    def state(self) -> list[list[float]]:
        """A copy, so that what is learned later does not change what was saved."""
        return [list(self.ended), list(self.entered)]

    @classmethod
    def from_state(cls, ended: Sequence[float], entered: Sequence[float]) -> Self:
        return cls(list(ended), list(entered))

    def blend(self, parent: Sequence[float], strength: float) -> list[float]:
        """Hazards of this node, shrunk towards the parent's as if that had `strength` counts."""
        return [
            (ended + strength * prior) / (entered + strength)
            for ended, entered, prior in zip(self.ended, self.entered, parent, strict=True)
        ]


class Fading:
    """The weight of an observation made now; grows as attempts end, so that old ones fade."""

    _RESCALE_AT = 1e12

    def __init__(self, half_life: float) -> None:
        """`half_life` in ended attempts."""
        self._growth = 2.0 ** (1.0 / half_life)
        self.weight = 1.0

    def one_ended(self) -> bool:
        """Time moves on; True when all counts must be divided by `weight` (see `rescaled`)."""
        self.weight *= self._growth
        return self.weight > self._RESCALE_AT

    def rescaled(self) -> None:
        self.weight = 1.0
