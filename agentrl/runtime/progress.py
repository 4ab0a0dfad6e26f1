"""How far a run is: what a checkpoint must know to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Self

from agentrl.record.journal_writer import Kept
from agentrl.runtime.tasks import group_number
from agentrl.types import Json


@dataclass(slots=True)
class RunProgress:
    """Counters of a run over all its launches."""

    step: int = 0
    """Optimizer steps done; also the version of the newest weights."""
    cursor: int = 0
    """Training tasks taken from the source."""
    pending: list[int] = field(default_factory=list)
    """Numbers of taken tasks whose groups were never trained on: they are done again."""
    experience: list[Json] = field(default_factory=list)
    """Groups that may be trained on again, by reference to the record."""
    trajectories: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    empty_steps: int = 0
    """Steps without a training signal, one after another, up to now."""
    eval_reward_before: float | None = None
    eval_reward: float | None = None
    eval_metrics: dict[str, float] = field(default_factory=dict)
    best_step: int | None = None
    """Step with the highest evaluation reward so far."""
    best_reward: float | None = None
    learned: dict[str, Json] = field(default_factory=dict)
    """What the scheduler had learned, `Scheduler.save()`."""
    wall_s: float = 0.0
    """Of earlier launches and this one, up to the last step."""

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Self:
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far training has come with the sequence of tasks."""

    step: int
    cursor: int
    pending: frozenset[int]

    @classmethod
    def of(cls, progress: RunProgress) -> Self:
        return cls(step=progress.step, cursor=progress.cursor, pending=frozenset(progress.pending))

    def is_done_with(self, group_id: str) -> bool:
        """Whether a training group was trained on, or given up."""
        number = group_number(group_id)
        return number < self.cursor and number not in self.pending


NO_CHECKPOINT = Standing(step=-1, cursor=0, pending=frozenset())
"""What a run goes on from that has none: nothing is done, and all weights are lost."""


def is_spent(kept: Kept, *, checkpoint: Standing, now: Standing) -> bool:
    """Whether no run that goes on from the checkpoint can have a use for a journaled attempt."""
    if kept.split != "train":
        return kept.is_ended  # an evaluation is done over
    if not now.is_done_with(kept.group_id):
        return False
    return checkpoint.is_done_with(kept.group_id) or kept.newest_version > checkpoint.step
