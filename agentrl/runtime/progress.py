"""How far a run is: what a checkpoint must know to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Self

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
