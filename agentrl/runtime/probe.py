"""Measures what work costs here, with the run's own model, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from agentrl.config.fleet import rollout_buckets
from agentrl.config.judge import GenRMJudge
from agentrl.config.run import RunConfig
from agentrl.config.sections import ModelSection
from agentrl.engine.engine import GenerateRequest
from agentrl.engine.torch_engine import TorchEngine
from agentrl.models.load import load_model
from agentrl.runtime.cores import cores_for, stay_on
from agentrl.runtime.costs import Costs
from agentrl.runtime.roles import device
from agentrl.train.trainer import Trainer
from agentrl.types import TrainingSample
from scheduler.costs import DecodeCost, PrefillCost, Shape, TrainCost

_ALL_CORES = os.sched_getaffinity(0)
ROUNDS = 3
"""The fastest of so many counts: what else the machine does only makes a round slower."""
STEPS = 24
"""Decode steps of one measurement."""
MOST_SEQUENCES = 64
"""Measured together; larger batches are extrapolated."""
ENTERING_S = 0.2
"""What a change of role takes beside building the new context: orders, connections, weights."""


def measure(config: RunConfig) -> Costs:
    """Takes a few seconds on an idle core."""
    load_model(config.model, seed=0)  # the first one imports what a worker that shifts has imported
    judge, runtime = config.judge, config.runtime
    rollout: dict[str, Shape] = {}
    for bucket in rollout_buckets(config):
        _take_cores(bucket.cores, pin=runtime.pin_cores)
        shape, serving_start_s = _serving(
            config.model, runtime.slots, config.rollout.context_tokens
        )
        rollout[bucket.name] = replace(shape, tp=bucket.cores)
    _take_cores(1, pin=runtime.pin_cores)
    genrm = None
    if isinstance(judge, GenRMJudge):
        genrm, _ = _serving(judge.model, judge.slots, judge.context_tokens)
    training, training_start_s = _training(config)
    return Costs(
        rollout=rollout,
        genrm=genrm,
        training=training,
        serving_start_s=serving_start_s + ENTERING_S,
        training_start_s=training_start_s + ENTERING_S,
    )


def _take_cores(number: int, *, pin: bool) -> None:
    os.sched_setaffinity(0, _ALL_CORES)
    (cores,) = cores_for([number], pin=pin)
    stay_on(cores)
    torch.set_num_threads(number)


# ------------------------------------------------------------------------------------- serving


def _serving(section: ModelSection, slots: int, context_tokens: int) -> tuple[Shape, float]:
    with _stopwatch() as building:
        engine = TorchEngine(
            load_model(section, seed=0).model,
            num_slots=slots,
            context_tokens=context_tokens,
            device=device(),
        )
    probe = _Probe(engine)
    short, long = max(1, context_tokens // 8), max(2, context_tokens // 2)
    few, many = max(2, min(slots, MOST_SEQUENCES) // 4), max(3, min(slots, MOST_SEQUENCES))
    points = [(1, short), (few, short), (many, short), (few, long)]
    with asyncio.Runner() as runner:
        steps = [runner.run(probe.step_s(number, context)) for number, context in points]
        per_token = runner.run(probe.prefill_s(long)) / long
        runner.run(engine.close())
    shape = Shape(
        tp=1,
        decode=_fitted(points, steps),
        prefill=PrefillCost(per_token=per_token),
        kv_tokens=slots * context_tokens,
    )
    return shape, building()


class _Probe:
    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self._number = 0

    async def step_s(self, number: int, context_tokens: int) -> float:
        """Seconds of one decode step with so many sequences of so many tokens."""
        seconds = []
        for _ in range(ROUNDS):
            names = [self._name() for _ in range(number)]
            for name in names:
                await self._engine.prefill(name, self._context(name, context_tokens))
            with _stopwatch() as decoding:
                async with asyncio.TaskGroup() as group:
                    for name in names:
                        group.create_task(self._decode(name, context_tokens))
            seconds.append(decoding() / STEPS)
            for name in names:
                await self._engine.release(name)
        return min(seconds)

    async def prefill_s(self, num_tokens: int) -> float:
        seconds = []
        for _ in range(ROUNDS):
            name = self._name()
            with _stopwatch() as computing:
                await self._engine.prefill(name, self._context(name, num_tokens))
            seconds.append(computing())
            await self._engine.release(name)
        return min(seconds)

    async def _decode(self, name: str, context_tokens: int) -> None:
        request = GenerateRequest(
            request_id=self._name(),
            session_id=name,
            ids=[*self._context(name, context_tokens), 1],
            max_new_tokens=STEPS,
        )
        async for _ in self._engine.generate(request):
            pass

    def _context(self, name: str, num_tokens: int) -> list[int]:
        """Unlike any other from its beginning on: what contexts share is computed only once."""
        return (list(name.encode()) + [1] * num_tokens)[:num_tokens]

    def _name(self) -> str:
        self._number += 1
        return f"{self._number} probe"


def _fitted(points: list[tuple[int, int]], steps_s: list[float]) -> DecodeCost:
    """Least squares of d + c * sequences + a * tokens in memory, none of them negative."""
    columns = np.array([[1.0, number, number * context] for number, context in points])
    d, c, a = np.clip(np.linalg.lstsq(columns, np.array(steps_s), rcond=None)[0], 0.0, None)
    return DecodeCost(b=0.0, b0=0.0, c=float(c), a=float(a), d=float(max(d, 1e-6)))


# ------------------------------------------------------------------------------------ training


def _training(config: RunConfig) -> tuple[TrainCost, float]:
    rollout = config.rollout
    with _stopwatch() as building:
        model = load_model(config.model, seed=0).model
        model.to(device())  # type: ignore[arg-type]  # transformers hides nn.Module.to
        trainer = Trainer(model, config.train, temperature=rollout.temperature)
    length = max(8, rollout.context_tokens // 2)
    samples = [_sample(length) for _ in range(max(1, config.train.microbatch_tokens // length))]
    seconds = []
    for _ in range(ROUNDS):
        with _stopwatch() as learning:
            trainer.accumulate(samples)
        seconds.append(learning())
        trainer.discard()
    with _stopwatch() as publishing:
        trainer.weights()
    per_token = min(seconds) / (length * len(samples))
    return TrainCost(per_token=per_token, fixed_s=publishing() + ENTERING_S / 4), building()


def _sample(length: int) -> TrainingSample:
    mask = np.arange(length) % 4 == 3
    return TrainingSample(
        trajectory_id="probe",
        group_id="probe",
        ids=np.ones(length, dtype=np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, np.float32(-1), np.float32(0)),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        advantages=np.where(mask, np.float32(1), np.float32(0)),
    )


# --------------------------------------------------------------------------------------- parts


@contextmanager
def _stopwatch() -> Iterator[Callable[[], float]]:
    started_s = time.perf_counter()
    ended_s: list[float] = []
    yield lambda: ended_s[0] - started_s
    ended_s.append(time.perf_counter())
