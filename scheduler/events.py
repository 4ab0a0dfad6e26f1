"""What the scheduler is told: facts that have happened, in order, one frozen dataclass a kind.

The driver (the live runtime or the simulator) makes events and the scheduler only reads them, so
a recorded run can be fed to a fresh scheduler again. The contract:

- `t` is seconds on the driver's clock and never falls; `seq` rises with every event; both are
  stamped where events are put in order, so that one log has one order.
- `job` names the training run an event belongs to. A worker's job is the one whose weights it
  serves now.
- A worker's `generation` rises each time it enters service. A trajectory's `generation` rises
  each time its runner starts over or asks for another placement of the same turn; it never falls
  for one trajectory id. Events of an older generation, and of trajectories that have ended, change
  nothing: they are late, and that is normal.
- Nothing here knows the future or the reward: a policy that reads events cannot peek.

Life of a trajectory, as its runner reports it:

    Submitted
      TurnReady -> (decision Place) -> Progress* -> TurnFinished -> (ToolStarted ToolReturned)*
      TurnReady -> ...
    Finished | Failed            from any point; whatever it held is free again

A GenRM request is an attempt of one turn with `role=GENRM`: the same events, served by other
workers, and not counted by admission.

Life of a run: `RunStarted` once, after `Restored` where a checkpoint knows something; each group that was admitted ends with exactly one of
`GroupAccepted` and `GroupRejected`; `Published` after each optimizer step. A driver whose training
workers come and go says `BatchReady` and waits for the decision `StartStep`; one with fixed
trainers just steps.

Life of a worker:

    WorkerReady -> (decisions Shift, HandoffOrder) -> HandoffStage* -> WorkerReady (new generation)
    WorkerLost                   from any point, with or without a `PreemptionNotice`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

REJECTED_S = 5.0
"""How long a worker gets no turns after a place on it was rejected."""


class Role(StrEnum):
    """What a worker does now."""

    ROLLOUT = "rollout"
    GENRM = "genrm"
    TRAINING = "training"


class Stage(StrEnum):
    """Of a handoff (scheduler.handoff)."""

    QUIESCE = "quiesce"
    """Unpin what is inside tools, abort or finish what decodes."""
    RELEASE = "release"
    """Give up memory and accelerators. From here on there is no way back."""
    ACQUIRE = "acquire"
    LOAD = "load"
    WARM = "warm"
    RESTART = "restart"
    """Kill the process and start it in its new role."""


class ToolStatus(StrEnum):
    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"


class FailureKind(StrEnum):
    INFRA = "infra"
    """A box, an engine or a worker was lost."""
    ENV = "env"
    """The environment's own code raised."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBase:
    """`t` and `seq` are left out where an event is made and stamped where events get their order."""

    t: float = 0.0
    seq: int = 0
    job: str = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(EventBase):
    """Time has passed; sent at a steady pace for policies that act on time."""


# ------------------------------------------------------------------------------------- the run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(EventBase):
    """A job begins, or goes on after a resume with the counters of its checkpoint."""

    version: int = 0
    """Optimizer steps done, which is the version of the newest weights."""
    accepted_groups: int = 0
    """Groups accepted before this start: those trained on and those still in the buffer."""
    running_groups: int = 0
    """Groups that were open and are played on; each still ends with accept or reject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAccepted(EventBase):
    """All attempts of a group have ended and the group goes to training."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRejected(EventBase):
    """All attempts of a group have ended and it is not trained on; it may be replaced."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReady(EventBase):
    """Enough groups wait for optimizer step `step`; answered, then or later, by one `StartStep`.

    Said again for the same step when the step was lost and must be done over.
    """

    step: int
    tokens: int = 0
    """To train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(EventBase):
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded(EventBase):
    step: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(EventBase):
    """The weights of `version` optimizer steps can be loaded by workers."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(EventBase):
    """What an earlier launch of the job had learned: `Scheduler.save()` of its checkpoint, told
    before anything else, so that the log by itself gives the same decisions again."""

    learned: Mapping[str, Any]


# --------------------------------------------------------------------------------- trajectories


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryEvent(EventBase):
    trajectory_id: str
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted(TrajectoryEvent):
    """An attempt begins. Under a known id with a higher generation it replaces the old attempt."""

    group_id: str
    task_family: str = ""
    prompt_tokens: int = 0
    is_eval: bool = False
    """Evaluation is placed like training, and is not counted by admission."""
    role: Role = Role.ROLLOUT
    """Which workers serve it: `genrm` for a request to the reward model."""
    turn_tokens: tuple[int, ...] = ()
    """Sampled in each turn that it finished in another process, before it goes on in this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReady(TrajectoryEvent):
    """The context is complete and the policy should speak.

    With a higher generation than before it also gives up whatever placement the trajectory had:
    that is how a runner asks again after it lost a worker.
    """

    turn: int
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRejected(TrajectoryEvent):
    """The driver did not apply a `Place`: the worker had left, or has another generation.

    The turn waits again under the same generation; the worker gets nothing until its next
    `WorkerReady`, or until `REJECTED_S` have passed: others may reach what one runner does not.
    """

    turn: int
    worker_id: str
    worker_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(TrajectoryEvent):
    """A running turn has sampled `tokens` so far."""

    turn: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished(TrajectoryEvent):
    """The policy has spoken; the slot is free and the worker may still hold the cache."""

    turn: int
    tokens: int
    """Sampled in this turn."""
    context_tokens: int
    """Of the whole trajectory, this turn included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(TrajectoryEvent):
    turn: int
    call_id: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned(TrajectoryEvent):
    turn: int
    call_id: str
    tool: str
    status: ToolStatus
    size_tokens: int
    """Of the text that goes back to the model."""
    seconds: float
    call_hash: str = ""
    """Equal for calls with equal arguments, so that repetition shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(TrajectoryEvent):
    """The attempt came to an end of its own or by a limit."""

    tokens: int
    """Sampled in all turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(TrajectoryEvent):
    """The attempt was lost. A retry is a new `Submitted` with a higher generation."""

    kind: FailureKind


# ---------------------------------------------------------------------------------------- fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvent(EventBase):
    worker_id: str
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady(WorkerEvent):
    """A worker serves `role` from now on. A higher generation replaces the older one.

    With the generation of an open handoff it also says that WARM, or RESTART, is carried out. A
    training worker takes part from the next `StartStep` on.
    """

    role: Role
    bucket: str = "default"
    tp: int = 1
    """Accelerators that work together on one sequence."""
    max_running: int
    """Turns it decodes at the same time."""
    kv_tokens: int | None = None
    """Tokens whose keys and values fit; None: as many as its slots ask for."""
    policy_version: int = 0
    accelerators: tuple[str, ...] = ()
    """Those it owns; empty: one of its own, which no other worker can ever get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLoaded(WorkerEvent):
    """A serving worker has swapped to newer weights."""

    version: int
    seconds: float = 0.0
    """It took, fetching included; 0: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(WorkerEvent):
    """A worker is gone, or leaves service; its caches and its accelerators are gone too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionNotice(WorkerEvent):
    """The machine below a worker will be taken away. Should it stay, `WorkerReady` comes again."""

    deadline_s: float
    """From now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffStage(WorkerEvent):
    """A `HandoffOrder` is carried out. WARM and RESTART are reported by `WorkerReady` instead."""

    stage: Stage
    version: int = 0
    """What LOAD has loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffFailed(WorkerEvent):
    """A `Shift` or a `HandoffOrder` was not carried out: the worker could not, or is another one
    by now. Taken like a deadline that has passed."""

    stage: Stage
    reason: str = ""


Event = (
    Tick
    | RunStarted
    | Restored
    | GroupAccepted
    | GroupRejected
    | BatchReady
    | StepStarted
    | StepEnded
    | Published
    | Submitted
    | TurnReady
    | PlaceRejected
    | Progress
    | TurnFinished
    | ToolStarted
    | ToolReturned
    | Finished
    | Failed
    | WorkerReady
    | WeightsLoaded
    | WorkerLost
    | PreemptionNotice
    | HandoffStage
    | HandoffFailed
)
