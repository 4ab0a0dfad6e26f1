"""What a swap of weights costs running turns, by each policy, on a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tiny_models import prompts, tiny_qwen

from agentrl.engine.batcher import Batcher
from agentrl.engine.engine import GenerateRequest, Sampling
from agentrl.engine.kv_cache import KVCache
from agentrl.engine.swap_cost import SwapCost
from agentrl.engine.torch_engine import make_forward

LOAD_S = 2.0
STEP_S = 1.0


class Engine:
    """A batcher whose steps and loads take a second and two."""

    def __init__(self) -> None:
        model = tiny_qwen()
        cache = KVCache(num_slots=4, context_tokens=64, dtype=model.dtype, device=model.device)
        self.now_s = 0.0
        self.batcher = Batcher(
            make_forward(model, cache),
            cache,
            prefill_tokens=64,
            policy_version=0,
            clock=lambda: self.now_s,
        )

    def submit(self, name: str, ids: list[int], num_tokens: int) -> None:
        self.batcher.submit(
            GenerateRequest(
                request_id=name,
                session_id=name,
                ids=ids,
                max_new_tokens=num_tokens,
                sampling=Sampling(temperature=0),
            )
        )

    def step(self, times: int) -> None:
        for _ in range(times):
            self.now_s += STEP_S
            self.batcher.step()

    def load(self) -> None:
        self.now_s += LOAD_S

    def change_weights(self, *, keep_cache: bool) -> None:
        self.batcher.change_weights(self.load, 1, keep_cache=keep_cache)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def engine() -> Engine:
    """Two turns decode."""
    engine = Engine()
    for name, ids in zip("ab", prompts(10, 8), strict=True):
        engine.submit(name, ids, 20)
    engine.step(3)
    assert engine.batcher.take_swap_cost() == SwapCost()
    return engine


def test_turns_that_go_on_with_their_cache_wait_for_the_load(engine: Engine) -> None:
    engine.change_weights(keep_cache=True)
    engine.step(3)
    cost = engine.batcher.take_swap_cost()
    assert cost == SwapCost(swaps=1, stopped_s=LOAD_S, stalled_turn_s=2 * LOAD_S)
    assert engine.batcher.take_swap_cost() == SwapCost()


def test_turns_whose_cache_is_computed_anew_wait_for_that_too(engine: Engine) -> None:
    num_filled = engine.batcher.stats().cached_tokens
    engine.change_weights(keep_cache=False)
    engine.step(3)
    assert engine.batcher.take_swap_cost() == SwapCost(
        swaps=1,
        stopped_s=LOAD_S + STEP_S,
        stalled_turn_s=2 * (LOAD_S + STEP_S),
        recomputed_tokens=num_filled,
    )


def test_an_aborted_turn_waits_no_longer(engine: Engine) -> None:
    engine.change_weights(keep_cache=False)
    engine.batcher.abort("b")
    engine.step(2)
    assert engine.batcher.take_swap_cost().stalled_turn_s == LOAD_S + (LOAD_S + STEP_S)


def test_turns_that_come_while_others_end_wait_for_their_end_and_the_load(engine: Engine) -> None:
    engine.batcher.hold()
    engine.submit("c", [1, 2, 3], 4)
    while engine.batcher.stats().running:
        engine.step(1)
    dry_s = engine.now_s
    engine.change_weights(keep_cache=False)
    engine.batcher.admit()
    assert engine.batcher.take_swap_cost() == SwapCost(
        swaps=1,
        stopped_s=LOAD_S,
        stalled_turn_s=dry_s + LOAD_S - 3 * STEP_S,
        drained_turns=2,
        held_turns=1,
    )


def test_a_drain_that_nobody_waits_for_stops_nobody(engine: Engine) -> None:
    engine.batcher.hold()
    while engine.batcher.stats().running:
        engine.step(1)
    engine.change_weights(keep_cache=False)
    engine.batcher.admit()
    assert engine.batcher.take_swap_cost() == SwapCost(swaps=1, drained_turns=2)


def test_an_engine_at_rest_loads_for_free() -> None:
    engine = Engine()
    engine.change_weights(keep_cache=False)
    assert engine.batcher.take_swap_cost() == SwapCost(swaps=1)
