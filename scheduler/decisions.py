"""What the scheduler asks the driver to do.

A decision names the generations it was based on. The driver compares them with what it knows when
it applies the decision; where they differ it does nothing and reports that as an event
(`PlaceRejected`). `t` is the time of the event that made the decision possible, so a decision is a
function of the log alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionBase:
    t: float
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit(DecisionBase):
    """Start this many new groups. They count as running from now on."""

    num_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(DecisionBase):
    """Serve this turn on this worker. A slot there is taken from now on."""

    trajectory_id: str
    generation: int
    turn: int
    worker_id: str
    worker_generation: int


class RequeueReason(StrEnum):
    WORKER_LOST = "worker_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue(DecisionBase):
    """A running turn lost its slot: keep its tokens and ask again with a higher generation.

    A runner that has asked again already, or whose turn has ended, has nothing to do.
    """

    trajectory_id: str
    generation: int
    turn: int
    reason: RequeueReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(DecisionBase):
    """Give this attempt up: enough other groups are ready. It fails as cancelled.

    Only admission policies that over-sample ask for it, never the capacity rule.
    """

    trajectory_id: str
    generation: int


Decision = Admit | Cut | Place | Requeue
