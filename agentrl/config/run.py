"""The root of a run file."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from agentrl.config.checks import Conflicts, conflicts
from agentrl.config.judge import JudgeSection
from agentrl.config.scheduling import SchedulerSection
from agentrl.config.sections import (
    ChatSection,
    CheckpointSection,
    EnvSection,
    EvalSection,
    ModelSection,
    OutcomesSection,
    RolloutSection,
    RuntimeSection,
    SandboxSection,
    Section,
    TrainSection,
    WarmupSection,
)


class RunConfig(Section):
    """One training run."""

    name: str = Field(
        "run",
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
        max_length=100,
        description="Folder under `runs/`; a number is added when taken.",
    )
    seed: int = Field(
        0, ge=0, le=2**32 - 1, description="Of tasks, sampling, weights and data order."
    )
    env: EnvSection
    model: ModelSection = Field(description="Where the weights come from.")
    chat: ChatSection = Field(default_factory=ChatSection)
    sandbox: SandboxSection = Field(default_factory=SandboxSection)
    warmup: WarmupSection = Field(
        default_factory=WarmupSection, description="On the environment's own `demo()` turns."
    )
    rollout: RolloutSection = Field(default_factory=RolloutSection)
    judge: JudgeSection | None = Field(
        None, description="Who judges, for environments that ask `self.roles`; null: nobody."
    )
    train: TrainSection
    outcomes: OutcomesSection = Field(default_factory=OutcomesSection)
    runtime: RuntimeSection = Field(default_factory=RuntimeSection)
    scheduler: SchedulerSection = Field(default_factory=SchedulerSection)
    eval: EvalSection = Field(default_factory=EvalSection)
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        (), description="Where metrics go beside the record; wandb stays offline by default."
    )

    @model_validator(mode="after")
    def _check_conflicts(self) -> Self:
        if found := conflicts(self):
            raise Conflicts(found)
        return self
