"""The embedded engine against transformers, on one thread: tokens per second and their ratios.

    python tests/bench/engine.py [--rounds 5] [--larger]

Three sides sample at temperature 1 from one model with random weights, in one process, taking
turns round by round; each figure is a median over the rounds. Seconds are CPU seconds of the
process, all its threads together, so that other work on the machine does not count; `wall` holds
the ratios by the clock, which agree on an idle machine.

- ours: `TorchEngine` behind asyncio, log-probs and all, one stream a request.
- generate: `model.generate`, a batch at a time, left-padded, each batch as long as its longest.
- continuous: transformers' own continuous batching (`continuous_batching_context_manager`).

Two loads: `equal`, where one batch of prompts of equal length gets equally many new tokens; and
`tail`, where four times as many requests as slots have long-tailed lengths (most short, some 12
times the median). Only tokens that were asked for count.

The last line is one JSON object. `vs_generate_equal`, `vs_generate_tail` and
`vs_continuous_batching` (on the tail) are ours divided by theirs, for the quickstart's model;
`larger` holds the same for a model of 10 M parameters when asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from agentrl.config.sections import ScratchModel
from agentrl.engine.engine import GenerateRequest, Sampling
from agentrl.engine.torch_engine import TorchEngine
from agentrl.models.load import load_model

SLOTS = 32
CONTEXT_TOKENS = 512
QUICKSTART = {"from": "scratch"}
LARGER = {
    "from": "scratch",
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_layers": 6,
    "num_heads": 6,
    "head_dim": 64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    prompts: Sequence[list[int]]
    new_tokens: Sequence[int]

    @property
    def num_tokens(self) -> int:
        return sum(self.new_tokens)


def equal_load(rng: np.random.Generator) -> Load:
    prompts = rng.integers(0, 256, (SLOTS, 64)).tolist()
    return Load(prompts=prompts, new_tokens=[128] * SLOTS)


def tail_load(rng: np.random.Generator) -> Load:
    num_requests = 4 * SLOTS
    prompts = rng.integers(0, 256, (num_requests, 64)).tolist()
    lengths = np.clip(24 * rng.lognormal(0.0, 1.0, num_requests), 4, 288).astype(int).tolist()
    return Load(prompts=prompts, new_tokens=lengths)


# ---------------------------------------------------------------------------- the three sides


class Ours:
    def __init__(self, model: PreTrainedModel) -> None:
        self._engine = TorchEngine(model, num_slots=SLOTS, context_tokens=CONTEXT_TOKENS)
        self._runner = asyncio.Runner()
        self._round = 0

    def run(self, load: Load) -> None:
        self._round += 1
        self._runner.run(self._serve(load))

    async def _serve(self, load: Load) -> None:
        async with asyncio.TaskGroup() as group:
            for i, (ids, length) in enumerate(zip(load.prompts, load.new_tokens, strict=True)):
                group.create_task(self._turn(f"{self._round}/{i}", ids, length))

    async def _turn(self, name: str, ids: list[int], length: int) -> None:
        request = GenerateRequest(
            request_id=name,
            session_id=name,
            ids=ids,
            max_new_tokens=length,
            sampling=Sampling(seed=hash(name)),
        )
        received = 0
        async for chunk in self._engine.generate(request):
            received += len(chunk.ids)
        assert received == length
        await self._engine.release(name)

    def close(self) -> None:
        self._runner.run(self._engine.close())
        self._runner.close()


def generate(model: PreTrainedModel, load: Load) -> None:
    for start in range(0, len(load.prompts), SLOTS):
        ids = torch.tensor(load.prompts[start : start + SLOTS])
        longest = max(load.new_tokens[start : start + SLOTS])
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=GenerationConfig(
                max_new_tokens=longest, do_sample=True, top_k=0, pad_token_id=256
            ),
        )
        assert out.shape[1] == ids.shape[1] + longest


def continuous(model: PreTrainedModel, load: Load) -> None:
    config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=1, eos_token_id=-1)
    page_tokens = 16
    batching = ContinuousBatchingConfig(
        page_size=page_tokens,
        num_blocks=SLOTS * CONTEXT_TOKENS // page_tokens,
        max_batch_tokens=1024,
        max_requests_per_batch=SLOTS,
        use_cuda_graph=False,
        return_logprobs=True,
    )
    with model.continuous_batching_context_manager(
        generation_config=config, continuous_batching_config=batching
    ) as manager:
        for ids, length in zip(load.prompts, load.new_tokens, strict=True):
            manager.add_request(ids, max_new_tokens=length, eos_token_id=-1)
        received = 0
        for _ in load.prompts:
            result = manager.get_result(timeout=60)
            assert result is not None, "continuous batching stopped"
            received += len(result.generated_tokens)
    assert received == load.num_tokens


# ---------------------------------------------------------------------------- measuring


Seconds = dict[tuple[str, str], list[float]]
"""Of every round, by side and load."""


def measure(section: dict[str, Any], *, rounds: int, seed: int) -> dict[str, Any]:
    model = load_model(ScratchModel.model_validate(section), seed=seed).model
    model.generation_config.eos_token_id = None
    rng = np.random.default_rng(seed)
    loads = {"equal": equal_load(rng), "tail": tail_load(rng)}
    ours = Ours(load_model(ScratchModel.model_validate(section), seed=seed).model)
    sides: dict[str, Callable[[Load], None]] = {
        "ours": ours.run,
        "generate": lambda load: generate(model, load),
        "continuous": lambda load: continuous(model, load),
    }
    cpu: Seconds = {(side, name): [] for side in sides for name in loads}
    wall: Seconds = {key: [] for key in cpu}
    for round_number in range(rounds + 1):
        for name, load in loads.items():
            for side, run in sides.items():
                started = time.process_time(), time.perf_counter()
                run(load)
                if round_number:  # the first one warms up
                    cpu[side, name].append(time.process_time() - started[0])
                    wall[side, name].append(time.perf_counter() - started[1])
    ours.close()
    return {
        **ratios(cpu),
        **{
            f"{side}_{name}_tokens_per_s": round(loads[name].num_tokens / statistics.median(values))
            for (side, name), values in cpu.items()
        },
        "wall": ratios(wall),
    }


def ratios(seconds: Seconds) -> dict[str, float]:
    def ratio(theirs: str, load: str) -> float:
        """Of neighbouring runs, so that a change of the machine's speed falls out."""
        pairs = zip(seconds[theirs, load], seconds["ours", load], strict=True)
        return round(statistics.median(a / b for a, b in pairs), 2)

    return {
        "vs_generate_equal": ratio("generate", "equal"),
        "vs_generate_tail": ratio("generate", "tail"),
        "vs_continuous_batching": ratio("continuous", "tail"),
        "vs_continuous_batching_equal": ratio("continuous", "equal"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--larger", action="store_true", help="measure a model of 10 M too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    figures: dict[str, Any] = measure(QUICKSTART, rounds=arguments.rounds, seed=0)
    if arguments.larger:
        figures["larger"] = measure(LARGER, rounds=arguments.rounds, seed=0)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
