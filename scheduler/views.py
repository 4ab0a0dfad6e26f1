"""What a policy sees: immutable snapshots that hold only what has already happened.

A view has no field for the total length, the reward or anything else of the future, so a policy
cannot peek even by mistake. Views are made by the scheduler when something changed and shared
until the next change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from scheduler.decisions import Duty
from scheduler.events import Role, ToolStatus
from scheduler.handoff import OpenShift


class Phase(StrEnum):
    RESTING = "resting"
    """Between turns: starting, inside a tool call, or being scored."""
    WAITING = "waiting"
    """A turn is ready and has no slot yet."""
    DECODING = "decoding"
    LOST = "lost"
    """Its worker went away in the middle of a turn; the runner has not asked again yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFact:
    """One tool call that has returned."""

    turn: int
    tool: str
    status: ToolStatus
    size_tokens: int
    seconds: float
    call_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryView:
    job: str
    trajectory_id: str
    generation: int
    group_id: str
    task_family: str
    is_eval: bool
    role: Role
    """Of the workers that serve it."""
    prompt_tokens: int
    submitted_t: float
    phase: Phase
    turn: int
    """Index of the turn that is ready or decoding, or of the last one when resting."""
    tokens: int
    """Sampled so far, finished turns and the reported part of the running one."""
    turn_tokens: tuple[int, ...]
    """Sampled per finished turn."""
    tools: tuple[ToolFact, ...]
    context_tokens: int
    ready_t: float
    """Since when the turn waits."""
    home_id: str | None
    """The worker that served it last and may hold its cache."""
    home_generation: int
    siblings_finished: tuple[int, ...]
    """Sampled tokens of the attempts of its group that came to their end, in that order."""
    last_move_turn: int
    """The turn at which it changed workers last; -1 when it never did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    worker_id: str
    generation: int
    job: str
    role: Role
    bucket: str
    tp: int
    max_running: int
    kv_tokens: int | None
    policy_version: int
    num_running: int
    running_tokens: int
    """Context tokens of the turns that run on it."""

    @property
    def has_slot(self) -> bool:
        return self.num_running < self.max_running

    @property
    def load(self) -> float:
        """Share of its slots in use."""
        return self.num_running / self.max_running


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionView:
    """The counters of a job that decide whether it may start more groups."""

    version: int
    accepted_groups: int
    """Ever accepted, those already trained on included."""
    running_groups: int
    """Admitted and not yet ended."""


# --------------------------------------------------------------------------- for shifting roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker in service."""

    worker: WorkerView
    duty: Duty
    since_t: float
    """When it entered service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Open attempts of one job for one role."""

    waiting: int = 0
    """Turns that are ready and have no slot."""
    decoding: int = 0
    resting: int = 0
    """Between turns; they come back."""
    waiting_tokens: int = 0
    """Context of the waiting turns."""

    @property
    def total(self) -> int:
        return self.waiting + self.decoding + self.resting


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """Where a job stands between two optimizer steps."""

    version: int
    accepted_groups: int
    running_groups: int
    batch_tokens: int | None
    """Of the batch that waits for its step; None: none waits."""
    is_running: bool
    """A step has been asked for and has not ended."""
    began_t: float
    """Of the step that runs or ran last, or of the job before the first."""
    last_step_s: float | None
    last_step_workers: int
    last_step_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftView:
    """All that a `ShiftPolicy` may look at, for all jobs."""

    t: float
    members: tuple[Member, ...]
    spares: Mapping[str, Duty]
    """Retired workers, which can be given accelerators, and their last duty."""
    open_shifts: tuple[OpenShift, ...]
    demands: Mapping[tuple[str, Role], Demand]
    """By job and role; a missing entry is no demand."""
    trainings: Mapping[str, TrainingView]
    """By job."""

    def demand(self, job: str, role: Role) -> Demand:
        return self.demands.get((job, role), _NO_DEMAND)

    def serving(self, job: str, role: Role) -> tuple[Member, ...]:
        return tuple([m for m in self.members if m.duty.role is role and m.duty.job == job])

    def coming(self, job: str, role: Role) -> tuple[OpenShift, ...]:
        """Shifts that will end in this role."""
        return tuple([s for s in self.open_shifts if s.target.role is role and s.target.job == job])


_NO_DEMAND = Demand()
