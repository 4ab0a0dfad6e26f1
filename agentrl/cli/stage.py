"""An environment with all it needs to be played in this process: a chat format, limits, boxes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from agentrl.chat.format import ChatFormat
from agentrl.chat.make import make_chat
from agentrl.config.document import parse
from agentrl.config.sections import ChatSection, SandboxSection
from agentrl.env import Env, tasks_of
from agentrl.models.tokenizer import byte_backend
from agentrl.registry import EnvRef
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.judge_expert import expert_roles
from agentrl.rollout.local import Script, ScriptedRollouts
from agentrl.runtime.boxes import open_pool
from agentrl.types import Task, Trajectory
from sandboxes import BackendName, SandboxPool

Split = Literal["train", "eval"]

ROOMY = RolloutLimits(
    max_turn_tokens=1_000_000,
    max_trajectory_tokens=10_000_000,
    context_tokens=10_000_000,
    trajectory_timeout_s=24 * 3600.0,
)
"""For a person, who takes time, and for demonstrations, whose length is the environment's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    env_class: type[Env]
    chat: ChatFormat
    pool: SandboxPool | None
    limits: RolloutLimits = ROOMY

    async def play(self, task: Task, script: Script, split: Split) -> Trajectory:
        rollouts = ScriptedRollouts(
            self.env_class,
            self.chat,
            self.limits,
            sandboxes=self.pool,
            roles=expert_roles(self.env_class),
        )
        return await rollouts.play(task, script, split=split)


def load_env(name: str, options: Sequence[str]) -> type[Env]:
    """The class of that name with options given as `option=value`. Raises ValueError."""
    values = {}
    for option in options:
        key, equals, text = option.partition("=")
        document = parse(text, option)
        if not equals or document.problems:
            raise ValueError(f"--set {option}: wanted OPTION=VALUE, the value in YAML")
        values[key] = document.value
    return EnvRef(name=name, options=values).load()


@asynccontextmanager
async def staged(env_class: type[Env], backend: BackendName) -> AsyncIterator[Stage]:
    """Boxes are made as they are asked for and are gone afterwards."""
    schemas = env_class.definition().schemas
    chat = make_chat(ChatSection(), byte_backend(), schemas)
    section = SandboxSection(backend=backend, pool_size=0)
    async with open_pool(section, env_class, run_id="env") as pool:
        yield Stage(env_class=env_class, chat=chat, pool=pool)


def task_at(env_class: type[Env], number: int, split: Split) -> Task:
    found = list(islice(tasks_of(env_class, split), number, number + 1))
    if not found:
        raise ValueError(f"{env_class.__name__} has no task {number} in split {split!r}")
    return found[0]
