"""What the scheduler asks the driver to do.

A decision names the generations it was based on. The driver compares them with what it knows when
it applies the decision; where they differ it does nothing and reports that as an event
(`PlaceRejected`, `HandoffFailed`). `t` is the time of the event that made the decision possible, so a decision is a
function of the log alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.events import Role, Stage


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
    propensity: float = 1.0
    """How likely this worker was; less than 1 where placements are random in part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewarm(DecisionBase):
    """While a tool runs, compute this context on a worker it is likely to move to.

    Takes no slot and promises nothing; whoever cannot do it leaves it.
    """

    trajectory_id: str
    generation: int
    worker_id: str
    worker_generation: int


class RequeueReason(StrEnum):
    WORKER_LOST = "worker_lost"
    SHIFT = "shift"
    """Its worker is to serve something else, or will be taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue(DecisionBase):
    """A running turn lost its slot: keep its tokens and ask again with a higher generation.

    A place of the old generation that is still on its way is void. A runner that has asked again
    already, or whose turn has ended, has nothing to do.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStep(DecisionBase):
    """Do the optimizer step that `BatchReady` told of, with these workers; none other takes part.

    They stay training workers until `StepEnded`.
    """

    step: int
    workers: tuple[str, ...]


# --------------------------------------------------------------------------------- shifting roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """What a worker serves, and with which accelerators; with none it serves nothing."""

    role: Role
    bucket: str = "default"
    accelerators: frozenset[str]
    job: str = "main"


class Outcome(StrEnum):
    """Of a handoff."""

    COMPLETED = "completed"
    ROLLED_BACK = "rolled_back"
    RESTARTED = "restarted"
    RETIRED = "retired"
    """Neither the new accelerators nor the old ones were to be had; it serves nothing."""
    LOST = "lost"
    """The worker died."""
    UNKNOWN = "unknown"
    """A restart did not answer; the lease is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift(DecisionBase):
    """A worker is out of service from now on and will serve `target`; orders follow.

    A driver whose worker is not of `worker_generation` any more answers `HandoffFailed` with the
    new `generation` and stage QUIESCE; otherwise the worker carries the new one from now on.
    """

    worker_id: str
    worker_generation: int
    generation: int
    source: Duty
    target: Duty


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelShift(DecisionBase):
    """The reason for a shift is gone. What can still be done about it follows as `HandoffEnded`
    (rolled back), as orders with the old duty, or, later, as a `Shift` the other way."""

    worker_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffOrder(DecisionBase):
    """Carry out a stage and report it with the same generation, by `HandoffStage`,
    `HandoffFailed` or, for WARM and RESTART, `WorkerReady`."""

    worker_id: str
    generation: int
    stage: Stage
    duty: Duty
    """What it will serve."""
    version: int
    """Newest weights, for LOAD."""
    deadline_t: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffEnded(DecisionBase):
    """A handoff is over. After a roll back the worker is to report ready for its old duty, with
    this generation; after the other outcomes nothing is asked of it."""

    worker_id: str
    generation: int
    outcome: Outcome
    duty: Duty


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict(DecisionBase):
    """A worker that will be taken away serves no new turn; those not requeued may end there."""

    worker_id: str
    generation: int
    deadline_t: float


Decision = (
    Admit
    | Cut
    | Place
    | Prewarm
    | Requeue
    | StartStep
    | Shift
    | CancelShift
    | HandoffOrder
    | HandoffEnded
    | Evict
)
