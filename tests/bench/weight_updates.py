"""What new weights cost the turns that run, by policy: continue, reprefill, drain.

    python tests/bench/weight_updates.py [--rounds 3]

The load of an asynchronous run, on one embedded engine and one core: 48 attempts of several turns,
with long-tailed lengths and a little text between turns, and new weights every 800 sampled tokens.
Every policy serves the same turns, in turns round by round, and `none` serves them without any swap.
Processor seconds say what a policy costs the engine: contexts that are computed anew, and steps that
are left half empty while turns drain. What it costs the turns is the engine's own account, which a
run has in `metrics.jsonl` under `weights/`.

The last line is one JSON object, by policy and for each swap: `cpu_ms` beyond those of `none` (median
over the rounds), `stopped_ms`, `stalled_turn_s`, `recomputed_tokens`, `drained_turns`, `held_turns`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict

import torch

from agentrl.config.sections import ScratchModel
from agentrl.engine.engine import GenerateRequest, WeightSwap, WeightUpdate
from agentrl.engine.swap_cost import SwapCost
from agentrl.engine.torch_engine import TorchEngine
from agentrl.models.load import load_model

ATTEMPTS = 48
SWAP_EVERY_TOKENS = 800
CONTEXT_TOKENS = 640
MODEL = ScratchModel.model_validate({"from": "scratch", "hidden_size": 160, "num_layers": 2})
POLICIES = ("none", *(swap.value for swap in WeightSwap))


class Load:
    """Attempts against one engine, and whoever swaps its weights meanwhile."""

    def __init__(self, engine: TorchEngine, weights: WeightUpdate) -> None:
        self._engine = engine
        self._weights = weights
        self._num_sampled = 0
        self._is_due = asyncio.Event()

    async def run(self, policy: str) -> SwapCost:
        swapping = asyncio.create_task(self._swap(WeightSwap(policy))) if policy != "none" else None
        async with asyncio.TaskGroup() as attempts:
            for number in range(ATTEMPTS):
                attempts.create_task(self._attempt(f"{policy}-{number}", random.Random(number)))
        if swapping is not None:
            swapping.cancel()
        return await self._engine.take_swap_cost()

    async def _attempt(self, name: str, rng: random.Random) -> None:
        context = [rng.randrange(256) for _ in range(96)]
        for turn, length in enumerate(_lengths(rng)):
            request = GenerateRequest(
                request_id=f"{name}/{turn}", session_id=name, ids=context, max_new_tokens=length
            )
            async for chunk in self._engine.generate(request):
                context = [*context, *chunk.ids]
                self._count(len(chunk.ids))
            context = [*context, *(rng.randrange(256) for _ in range(16))]
        await self._engine.release(name)

    def _count(self, num_sampled: int) -> None:
        before, self._num_sampled = self._num_sampled, self._num_sampled + num_sampled
        if before // SWAP_EVERY_TOKENS < self._num_sampled // SWAP_EVERY_TOKENS:
            self._is_due.set()

    async def _swap(self, swap: WeightSwap) -> None:
        version = 0
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            version += 1
            await self._engine.load_weights(version, self._weights, swap=swap)


def _lengths(rng: random.Random) -> Iterator[int]:
    """Of the turns of one attempt; a few are much longer than the others."""
    for _ in range(rng.randint(3, 6)):
        yield min(90, max(4, int(rng.lognormvariate(3.0, 0.8))))


def serve(policy: str) -> tuple[float, SwapCost]:
    """Processor seconds, and what the engine says."""
    model = load_model(MODEL, seed=0).model
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}

    async def main() -> tuple[float, SwapCost]:
        engine = TorchEngine(model, num_slots=ATTEMPTS, context_tokens=CONTEXT_TOKENS)
        started_s = time.process_time()
        cost = await Load(engine, weights).run(policy)
        seconds = time.process_time() - started_s
        await engine.close()
        return seconds, cost

    return asyncio.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, SwapCost] = {}
    serve("none")
    for number in range(rounds):
        for policy in POLICIES:
            cpu_s, costs[policy] = serve(policy)
            seconds[policy].append(cpu_s)
            print(
                f"round {number + 1}  {policy:10} {cpu_s:6.2f} CPU s  {costs[policy]}", flush=True
            )
    print(json.dumps({policy: figures(seconds, costs[policy], policy) for policy in POLICIES[1:]}))


def figures(seconds: dict[str, list[float]], cost: SwapCost, policy: str) -> dict[str, float]:
    swaps = max(1, cost.swaps)
    more_s = [a - b for a, b in zip(seconds[policy], seconds["none"], strict=True)]
    each = {name: value / swaps for name, value in asdict(cost).items()}
    stopped_ms = 1000 * each.pop("stopped_s")
    return {
        "swaps": each.pop("swaps") * cost.swaps,
        "cpu_ms": round(1000 * statistics.median(more_s) / swaps, 1),
        "stopped_ms": round(stopped_ms, 1),
        **{name: round(value, 2) for name, value in each.items()},
    }


if __name__ == "__main__":
    main()
