"""What a worker does as a judge: its own weights, taught before the run, served like a policy's.

A judge made from scratch is taught once, on the environment's own questions and its rule's answers,
and lies in the run folder from then on: resumed launches and replaced workers load it from there.
Its weights never change while the run goes on, so every verdict has version 0.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from safetensors import SafetensorError

from agentrl.chat.make import make_chat
from agentrl.config.judge import GenRMJudge
from agentrl.config.run import RunConfig
from agentrl.config.sections import PathModel
from agentrl.engine.torch_engine import TorchEngine
from agentrl.env import seed_of
from agentrl.models.load import LoadedModel, load_model
from agentrl.record.disk import needed_on_disk
from agentrl.registry import EnvRef
from agentrl.rollout.judge_expert import judge_rows
from agentrl.runtime.display import WarmupProgress
from agentrl.runtime.roles import OnBroken, ServedEngine, device
from agentrl.train.warmup import Warmup


class GenRMContext(ServedEngine):
    """Serves the judge's weights."""

    @classmethod
    async def start(
        cls, config: RunConfig, secret: str, host: str, folder: Path, on_broken: OnBroken
    ) -> Self:
        """`folder` is where a judge that was taught lies."""
        section = genrm_of(config)
        loaded = await asyncio.to_thread(_load, config, section, folder)
        engine = TorchEngine(
            loaded.model,
            num_slots=section.slots,
            context_tokens=section.context_tokens,
            device=device(),
            on_broken=on_broken,
        )
        return await cls.open(engine, host=host, secret=secret)


def genrm_of(config: RunConfig) -> GenRMJudge:
    assert isinstance(config.judge, GenRMJudge), "only runs with judge.type genrm have such workers"
    return config.judge


def teach(config: RunConfig, folder: Path, env: EnvRef) -> Iterator[WarmupProgress]:
    """Supervised steps of the judge, which are all in `folder` after the last one.

    Raises ValueError when the environment has nothing to teach.
    """
    section = genrm_of(config)
    loaded = load_model(section.model, seed=seed_of(config.seed, "judge"))
    rows = judge_rows(
        env.load(),
        make_chat(section.chat, loaded.tokenizer.backend_tokenizer, ()),
        brief=section.brief,
        context_tokens=section.context_tokens,
        seed=config.seed,
    )
    loaded.model.to(device())  # type: ignore[arg-type]  # transformers hides nn.Module.to
    for step in Warmup(loaded.model, section.warmup).run(rows):
        if step.step == section.warmup.steps:
            _save(loaded, folder)
        yield WarmupProgress(
            step=step.step, num_steps=section.warmup.steps, loss=step.loss, of="judge"
        )


def _load(config: RunConfig, section: GenRMJudge, folder: Path) -> LoadedModel:
    seed = seed_of(config.seed, "judge")
    if folder.exists():
        return load_model(PathModel(from_="path", path=str(folder)), seed=seed)
    return load_model(section.model, seed=seed)


def _save(loaded: LoadedModel, folder: Path) -> None:
    """Whole or not there at all."""
    writing = folder.with_name(f".writing-{folder.name}")
    with needed_on_disk(folder, SafetensorError):
        shutil.rmtree(writing, ignore_errors=True)
        loaded.model.save_pretrained(writing)
        loaded.tokenizer.save_pretrained(writing)
        writing.rename(folder)
