"""What a run tells the person who watches it. The command line brings the implementations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

from agentrl.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupProgress:
    step: int
    num_steps: int
    loss: float
    of: Literal["policy", "judge"] = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """One optimizer step, as it is printed."""

    step: int
    num_steps: int
    reward: float | None
    """Mean over the batch's trajectories; None when none was scored."""
    trajectories: int
    trajectories_per_s: float
    tokens_per_s: float
    """Sampled tokens."""
    outcomes: Mapping[str, int]
    """Of all attempts that ended since the step before, by kind."""
    seconds: float
    stalled_turn_s: float
    """Seconds that new weights held turns up, turn by turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalProgress:
    step: int
    reward: float | None
    """None when no attempt could be scored."""
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What `summary.json` holds and the last lines of a run say."""

    run: Path
    steps: int
    is_complete: bool
    """All steps that were asked for are done."""
    eval_reward_before: float | None
    eval_reward: float | None
    wall_s: float
    trajectories: int
    outcomes: Mapping[str, int]
    eval_metrics: Mapping[str, float]
    """Means of the environment's own metrics in the last evaluation."""

    def to_json(self) -> dict[str, Json]:
        return {**asdict(self), "run": str(self.run)}


class Display(Protocol):
    def phase(self, text: str) -> None:
        """A new part of the run begins."""
        ...

    def warmup(self, progress: WarmupProgress) -> None: ...
    def step(self, progress: StepProgress) -> None: ...
    def evaluated(self, progress: EvalProgress) -> None: ...

    def note(self, text: str) -> None:
        """Something that happened, in a line."""
        ...

    def warn(self, text: str) -> None:
        """Something that asks a person to do something."""
        ...
