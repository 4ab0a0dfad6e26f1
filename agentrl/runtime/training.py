"""What a worker does while it trains: the model, its trainer, and the replicas it meets.

Plain and synchronous, without Ray; it lives in one thread of its worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agentrl.chat.format import ChatFormat
from agentrl.chat.make import make_chat
from agentrl.config.run import RunConfig
from agentrl.engine.engine import WeightUpdate
from agentrl.engine.weights import load_into
from agentrl.env import Env
from agentrl.models.load import LoadedModel, load_model
from agentrl.registry import EnvRef
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.demos import DemoRow, DemoTask, demo_rows, demo_tasks
from agentrl.rollout.judge_expert import expert_roles
from agentrl.runtime.boxes import open_pool
from agentrl.runtime.display import WarmupProgress
from agentrl.runtime.membership import Membership
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.replicas import Replicas
from agentrl.runtime.reports import GradientShare
from agentrl.runtime.roles import device
from agentrl.train.checkpoint import load_checkpoint, save_checkpoint
from agentrl.train.checkpoint_folders import prune_checkpoints
from agentrl.train.report import AppliedStep
from agentrl.train.samples import GroupCutter
from agentrl.train.trainer import Trainer, TrainerState
from agentrl.train.warmup import Warmup
from agentrl.types import Group

SHOWN_AT_ONCE = 256
"""Demonstrations made in one go, before the steps that use them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """All that another replica needs to go on from the same place."""

    weights: WeightUpdate
    trainer: TrainerState


class TrainingContext:
    """A model being trained: by demonstrations first, then by groups."""

    def __init__(self, config: RunConfig, loaded: LoadedModel) -> None:
        self._config = config
        self._model = loaded.model
        self._model.to(device())  # type: ignore[arg-type]  # transformers hides nn.Module.to
        self._tokenizer = loaded.tokenizer
        self._cutter = GroupCutter(
            config.train.advantage,
            action=config.outcomes.action,
            min_group=config.rollout.min_group,
        )
        self._replicas: Replicas | None = None

    @classmethod
    def start(cls, config: RunConfig, checkpoint: Path | None) -> Self:
        """With the weights of the run's first moment, or where a checkpoint was taken."""
        context = cls(config, load_model(config.model, seed=config.seed))
        if checkpoint is not None:
            context.trainer.load_state(load_checkpoint(checkpoint, context._model))
        return context

    @cached_property
    def trainer(self) -> Trainer:
        """Made when first needed, which is after the warm-up: a KL penalty refers to the weights
        of that moment."""
        rollout = self._config.rollout
        return Trainer(
            self._model,
            self._config.train,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
        )

    def warm_up(self, replicas: Replicas, env: EnvRef) -> Iterator[WarmupProgress]:
        """Supervised steps on this replica's share of the demonstrations."""
        section = self._config.warmup
        env_class = env.load()
        chat = make_chat(
            self._config.chat, self._tokenizer.backend_tokenizer, env_class.definition().schemas
        )
        shown = self._demonstrations(env_class, chat, replicas.membership)
        with replicas:
            steps = Warmup(self._model, section).run(
                shown, num_replicas=replicas.membership.size, average=replicas.average
            )
            for step in steps:
                yield WarmupProgress(step=step.step, num_steps=section.steps, loss=step.loss)

    def _demonstrations(
        self, env_class: type[Env], chat: ChatFormat, membership: Membership
    ) -> Iterator[DemoRow]:
        """Endless: every `size`-th demonstration, from the `rank`-th on."""
        tasks = islice(demo_tasks(env_class), membership.rank, None, membership.size)
        while True:
            yield from asyncio.run(self._show(env_class, chat, list(islice(tasks, SHOWN_AT_ONCE))))

    async def _show(
        self, env_class: type[Env], chat: ChatFormat, tasks: list[DemoTask]
    ) -> list[DemoRow]:
        config = self._config
        async with open_pool(config.sandbox, env_class, run_id=config.name) as pool:
            return await demo_rows(
                env_class,
                chat,
                RolloutLimits.of(config.rollout),
                tasks,
                sandboxes=pool,
                roles=expert_roles(env_class),
                run_seed=config.seed,
            )

    # ------------------------------------------------------------------------- optimizer steps

    def gradients(self, groups: Sequence[Group], replicas: Replicas) -> GradientShare:
        """Compute this replica's share of the step, and leave the sum of all shares behind.

        Raises `ReplicaLost`; nothing has changed then, and the step can be done over.
        """
        cuts = [self._cutter.cut(group) for group in groups]
        samples = [sample for cut in cuts for sample in cut.samples]
        try:
            share = self.trainer.accumulate(
                samples, rank=replicas.membership.rank, size=replicas.membership.size
            )
            if samples:
                self._meet(replicas).add_up(list(self._model.parameters()))
        except BaseException:
            # the others must not wait for a share that never comes
            self.leave_replicas()
            self.trainer.discard()
            raise
        return GradientShare(
            fates={cut.group_id: cut.fate.value for cut in cuts},
            num_samples=len(samples),
            share=share,
        )

    def apply(self, has_samples: bool) -> AppliedStep:
        return self.trainer.apply(has_samples=has_samples)

    def _meet(self, replicas: Replicas) -> Replicas:
        """Replicas stay together from step to step, until their number changes."""
        if self._replicas is None or self._replicas.membership != replicas.membership:
            self.leave_replicas()
            self._replicas = replicas
            replicas.__enter__()
        return self._replicas

    def leave_replicas(self) -> None:
        if self._replicas is not None:
            self._replicas.__exit__()
            self._replicas = None

    def snapshot(self) -> Snapshot:
        return Snapshot(weights=self.weights(), trainer=self.trainer.state())

    def take_over(self, snapshot: Snapshot) -> None:
        """Become a replica of the one that the snapshot was taken of."""
        load_into(self._model, snapshot.weights)
        self.trainer.load_state(snapshot.trainer)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        return self.trainer.weights()

    def save(self, progress: RunProgress, folder: Path) -> None:
        save_checkpoint(
            folder,
            step=progress.step,
            model=self._model,
            tokenizer=self._tokenizer,
            state=self.trainer.state(),
            progress=progress.to_json(),
        )
        prune_checkpoints(folder, keep=self._config.checkpoint.keep, best_step=progress.best_step)
