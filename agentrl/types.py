"""The nouns that every part of agentrl shares, one frozen dataclass each.

A value here crosses a component's boundary: an environment speaks in `Task`, `Turn` and
`ToolCall`; the token builder hands over `Segment`s; a finished attempt is a `Trajectory`; the
trainer gets `TrainingSample`s. Nothing here imports torch, ray or an engine, so that a light
process (the inspector, `agentrl check`) can use all of it.

Invariants
- Token columns of one segment have equal lengths; log-probs and versions exist exactly on
  sampled segments.
- `StopReason` says why an attempt ended, `Outcome` says what that means for training, and the
  reward is separate from both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Json = Any
"""A value that JSON can hold."""


class StopReason(StrEnum):
    """Why a trajectory ended. Says nothing of its reward."""

    DONE = "done"
    """The environment finished it, by `finish()` or by `reply()` returning None."""
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    """The budget of sampled tokens, of the turn or of the trajectory, is spent."""
    CONTEXT_FULL = "context_full"
    """Prompt and turns fill the model's context."""
    WALL_CLOCK = "wall_clock"
    ENV_ERROR = "env_error"
    INFRA_ERROR = "infra_error"
    CANCELLED = "cancelled"

    @property
    def is_truncated(self) -> bool:
        return self in _TRUNCATED


_TRUNCATED = frozenset(
    {
        StopReason.MAX_TURNS,
        StopReason.MAX_TOKENS,
        StopReason.CONTEXT_FULL,
        StopReason.WALL_CLOCK,
    }
)


class Outcome(StrEnum):
    """What an attempt is worth to training; a table in the YAML maps it to an action."""

    FINISHED = "finished"
    TRUNCATED = "truncated"
    """Ended by a limit, and scored."""
    UNSCORED = "unscored"
    """A reward was None, NaN or infinite."""
    ENV_ERROR = "env_error"
    """The environment's own code raised, or it wants files in its box that cannot be there."""
    INFRA_ERROR = "infra_error"
    """A box, an engine, a judge or a worker was lost. Never reward 0, never trained on."""
    CANCELLED = "cancelled"


OutcomeAction = Literal["train", "zero", "drop", "retry"]


# ---------------------------------------------------------------------------- environment side


@dataclass(frozen=True, slots=True)
class Task:
    """A problem. `data` never reaches the model or the box unless the environment puts it there."""

    id: str
    prompt: str = ""
    data: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("id", "prompt"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ValueError(
                    f"Task.{name} is {value!r}; wanted a text, since "
                    + (
                        "groups, seeds and the record are keyed by it"
                        if name == "id"
                        else "a model reads it; what only tools or rewards need goes in `data`"
                    )
                )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model asked for; `error` is set when it cannot run, and says why."""

    name: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    id: str = ""
    error: str | None = None
    """What the model is told instead of a result (bad JSON, cut off, arguments not an object)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The answer to one call. Every call of a turn has exactly one, in call order."""

    call_id: str
    name: str
    text: str
    status: Literal["ok", "error", "timeout"] = "ok"
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One policy call and what answered it.

    An environment's `demo()` yields turns with `text` and `calls` only; the runtime fills in the
    rest as the turn is played.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] | Sequence[ToolCall] = ()
    reasoning: str = ""
    results: tuple[ToolResult, ...] = ()
    reply: str | None = None
    """What the environment said to a turn without calls; None ends the trajectory."""
    reward: float = 0.0
    """Credit given during this turn by `give()`."""
    is_truncated: bool = False
    """The turn was cut at a limit, so none of its calls ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """What a run of sampled ids says, as a chat format reads it."""

    text: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, in the shape chat templates expect."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPart:
    """One named part of a reward; the reward is the weighted sum of its parts."""

    name: str
    value: float | None
    """None: not scored, which makes the whole trajectory unscored."""
    weight: float = 1.0
    rationale: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What an attempt enters into a contest with the others of its group."""

    name: str
    """Of the reward that the contest decides."""
    weight: float
    question: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One question to a judge, and what came of it: for people who want to know why."""

    judge: str
    """The role that was asked."""
    kind: str
    prompt: str
    """What the judge read."""
    answers: tuple[str, ...]
    """What it said, one text a try; the last one was read, unless there is an error."""
    parts: tuple[RewardPart, ...] = ()
    error: str | None = None
    """Why there is no verdict, if there is none."""
    served_by: str = ""
    """The worker that gave the last answer, or the server's address."""
    num_tokens: int = 0
    """Sampled in all tries."""
    seconds: float = 0.0


# ---------------------------------------------------------------------------- token side


class Origin(StrEnum):
    """Where a run of token ids comes from; only sampled ones are trained on."""

    PROMPT = "prompt"
    SAMPLED = "sampled"
    TOOL = "tool"
    REPLY = "reply"
    SCAFFOLD = "scaffold"
    """Text the chat template puts between messages."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A run of token ids with one origin. `logprobs` and `policy_versions` only when sampled."""

    origin: Origin
    turn: int
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32] | None = None
    """Log-probability of each id under the distribution it was really sampled from."""
    policy_versions: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        is_sampled = self.origin is Origin.SAMPLED
        assert is_sampled == (self.logprobs is not None) == (self.policy_versions is not None)
        assert self.logprobs is None or len(self.logprobs) == len(self.ids)
        assert self.policy_versions is None or len(self.policy_versions) == len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


Row = tuple[Segment, ...]
"""Segments in the order the model saw them: one training row. A trajectory has one, or more when
a chat template rewrote its history (a fork)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one turn was served."""

    turn: int
    worker_id: str
    bucket: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """The record of one attempt at one task."""

    trajectory_id: str
    task_id: str
    group_id: str
    sibling: int
    attempt: int = 0
    """Which try this is: retries after an error count up, and late results of old ones are void."""
    split: str = "train"
    rows: tuple[Row, ...] = ()
    turns: tuple[Turn, ...] = ()
    messages: tuple[Message, ...] = ()
    """What opened the conversation: system text and the first user message(s)."""
    reward: float | None = None
    reward_parts: tuple[RewardPart, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    """What judges were asked about it, in the order of their answers."""
    entries: tuple[Entry, ...] = ()
    """Contests that wait for the rest of the group; they are not recorded, their parts are."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    stop_reason: StopReason = StopReason.DONE
    outcome: Outcome = Outcome.FINISHED
    error: str | None = None
    """The error's text with its traceback, for `env_error` and `infra_error`."""
    placements: tuple[Placement, ...] = ()
    seed: int = 0
    started_s: float = 0.0
    """Wall-clock time of the start, seconds since the epoch."""
    seconds: float = 0.0
    tool_seconds: float = 0.0
    continued: int = 0
    """How often it went on in another process, after the one that played it was lost."""
    diverged: str | None = None
    """What was answered otherwise when it was to go on, so that it was started anew."""

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(s) for row in self.rows for s in row if s.origin is Origin.SAMPLED)

    @property
    def num_tokens(self) -> int:
        return sum(len(s) for row in self.rows for s in row)

    @property
    def oldest_policy_version(self) -> int | None:
        """The oldest weights that sampled a token of it; None when nothing was sampled."""
        return min((int(versions.min()) for versions in self._policy_versions()), default=None)

    @property
    def newest_policy_version(self) -> int | None:
        return max((int(versions.max()) for versions in self._policy_versions()), default=None)

    def _policy_versions(self) -> Iterator[NDArray[np.int32]]:
        for row in self.rows:
            for segment in row:
                if segment.policy_versions is not None and len(segment):
                    yield segment.policy_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """G attempts at one task. `trajectories` may hold fewer than `size` when some were lost."""

    group_id: str
    task_id: str
    size: int
    trajectories: tuple[Trajectory, ...]
    reuse: int = 0
    """Optimizer steps that trained on it before; 0 for a fresh one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """The row a trainer gets: four columns of equal length, and one advantage a token."""

    trajectory_id: str
    group_id: str
    ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    """True exactly on sampled tokens, the sampled stop token included."""
    rollout_logprobs: NDArray[np.float32]
    """0 where the mask is False."""
    policy_versions: NDArray[np.int32]
    """-1 where the mask is False."""
    advantages: NDArray[np.float32]
    """0 where the mask is False."""
    is_replayed: bool = False
    """A step before trained on it too."""

    def __post_init__(self) -> None:
        columns = (self.loss_mask, self.rollout_logprobs, self.policy_versions, self.advantages)
        assert all(len(column) == len(self.ids) for column in columns)

    def __len__(self) -> int:
        return len(self.ids)
