"""What the two sides of the comparison tell each other, as JSON files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

Generation = Literal["generate", "continuous_batching"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlSettings:
    """The part of a run file that TRL has something like, and TRL's own knobs."""

    model: str
    """Folder of the starting weights, with their tokenizer."""
    env_name: str
    env_options: dict[str, Any]
    sandbox: dict[str, Any]
    """The `sandbox` section of the run file."""
    steps: int
    groups_per_step: int
    group_size: int
    max_turn_tokens: int
    max_completion_tokens: int
    """Of a whole trajectory after its prompt, tool text included."""
    temperature: float
    learning_rate: float
    betas: tuple[float, float]
    grad_clip: float
    clip_low: float
    clip_high: float
    seed: int
    threads: int
    microbatch: int
    """Rows of one forward pass in training."""
    generation: Generation

    @property
    def batch(self) -> int:
        return self.groups_per_step * self.group_size

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """One optimizer step, as either side reports it."""

    seconds: float
    """From the end of the step before to the end of this one, with all that lies between."""
    trajectories: int
    sampled_tokens: float
    """Mean of a trajectory."""
    turns: float
    """Mean of a trajectory."""
    reward: float

    @property
    def trajectories_per_s(self) -> float:
        return self.trajectories / self.seconds


def save_figures(path: Path, steps: list[StepFigures]) -> None:
    path.write_text(json.dumps([asdict(step) for step in steps]))


def load_figures(path: Path) -> list[StepFigures]:
    return [StepFigures(**step) for step in json.loads(path.read_text())]
