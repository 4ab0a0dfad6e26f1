"""What a worker does in a role: built when the role begins, dropped when it ends.

Plain objects without Ray. The training context is synchronous and lives in one thread; the rollout
context runs an engine, which has a thread of its own, behind a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.chat.format import ChatFormat
from agentrl.chat.make import make_chat
from agentrl.config.run import RunConfig
from agentrl.engine.engine import WeightUpdate
from agentrl.engine.remote import EngineServer
from agentrl.engine.torch_engine import TorchEngine
from agentrl.env import Env
from agentrl.models.load import LoadedModel, load_model
from agentrl.registry import EnvRef
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.demos import DemoRow, DemoTask, demo_rows, demo_tasks
from agentrl.rollout.judge_expert import expert_roles
from agentrl.runtime.boxes import open_pool
from agentrl.runtime.display import WarmupProgress
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.replicas import Replicas, Seat
from agentrl.runtime.reports import TrainedStep
from agentrl.train.checkpoint import load_checkpoint, save_checkpoint
from agentrl.train.checkpoint_folders import prune_checkpoints
from agentrl.train.report import TrainedSample
from agentrl.train.samples import GroupCutter
from agentrl.train.trainer import Trainer
from agentrl.train.warmup import Warmup
from agentrl.types import Group

SHOWN_AT_ONCE = 256
"""Demonstrations made in one go, before the steps that use them."""


class RolloutContext:
    """An engine with weights of some version, reachable at `url`."""

    def __init__(self, engine: TorchEngine, server: EngineServer, url: str, *, keep_cache: bool):
        self._engine = engine
        self._server = server
        self._keep_cache = keep_cache
        self.url = url

    @classmethod
    async def start(
        cls, config: RunConfig, secret: str, host: str, version: int, weights: WeightUpdate
    ) -> Self:
        engine = TorchEngine(
            load_model(config.model, seed=config.seed).model,
            num_slots=config.runtime.slots,
            context_tokens=config.rollout.context_tokens,
            device=device(),
        )
        await engine.load_weights(version, weights, keep_cache=False)
        server = EngineServer(engine, host=host, token=secret)
        port = await server.start()
        keep_cache = config.runtime.weight_update == "continue"
        return cls(engine, server, f"ws://{host}:{port}", keep_cache=keep_cache)

    async def load(self, version: int, weights: WeightUpdate) -> None:
        await self._engine.load_weights(version, weights, keep_cache=self._keep_cache)

    async def close(self) -> None:
        await self._server.close()
        await self._engine.close()


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

    def warm_up(self, replicas: Replicas) -> Iterator[WarmupProgress]:
        """Supervised steps on this replica's share of the demonstrations."""
        section, env = self._config.warmup, self._config.env
        options = {**env.options, **section.env_options}
        env_class = EnvRef(name=env.name, options=options).load()
        chat = make_chat(
            self._config.chat, self._tokenizer.backend_tokenizer, env_class.definition().schemas
        )
        shown = self._demonstrations(env_class, chat, replicas.seat)
        with replicas:
            steps = Warmup(self._model, section).run(
                shown, num_replicas=replicas.seat.size, average=replicas.average
            )
            for step in steps:
                yield WarmupProgress(step=step.step, num_steps=section.steps, loss=step.loss)

    def _demonstrations(
        self, env_class: type[Env], chat: ChatFormat, seat: Seat
    ) -> Iterator[DemoRow]:
        """Endless: every `size`-th demonstration, from the `rank`-th on."""
        tasks = islice(demo_tasks(env_class), seat.rank, None, seat.size)
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

    def train(self, groups: Sequence[Group]) -> TrainedStep:
        """One optimizer step, without an update when no group has anything to learn from."""
        cuts = [self._cutter.cut(group) for group in groups]
        samples = [sample for cut in cuts for sample in cut.samples]
        fates = {cut.group_id: cut.fate.value for cut in cuts}
        result = self.trainer.step(samples)
        return TrainedStep(
            metrics=result.metrics,
            fates=fates,
            advantages={sample.trajectory_id: _advantage(sample) for sample in result.samples},
            columns=_columns(result.samples),
            sample_lengths=[(s.trajectory_id, len(s.advantages)) for s in result.samples],
        )

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


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _advantage(sample: TrainedSample) -> float:
    """The largest in size; all sampled tokens of a row share one unless turns got credit."""
    return float(sample.advantages[np.argmax(np.abs(sample.advantages))])


_COLUMNS = ("advantages", "trainer_logprobs", "importance_ratios", "is_clipped")


def _columns(samples: Sequence[TrainedSample]) -> dict[str, NDArray[Any]]:
    if not samples:
        return {}
    return {
        name: np.concatenate([getattr(sample, name) for sample in samples]) for name in _COLUMNS
    }
