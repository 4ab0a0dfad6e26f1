"""The event-skipping worker against closed forms and against the token-by-token reference."""

from __future__ import annotations

import math
import random
from math import inf

import pytest

from scheduler.costs import DecodeCost, PrefillCost, Shape
from scheduler.sim.requests import DecodeWorker, Key, Request
from scheduler.sim.stepwise import StepwiseWorker
from scheduler.sim.worker import SkippingWorker

DECODE = DecodeCost(b=0.01, b0=0.004, c=5e-4, a=1e-6, d=0.001)


def shape(kv_tokens: int = 10**9, prefill_per_token: float = 1e-4) -> Shape:
    return Shape(
        tp=1,
        decode=DECODE,
        prefill=PrefillCost(per_token=prefill_per_token),
        kv_tokens=kv_tokens,
    )


def key(name: int) -> Key:
    return ("main", str(name))


def drain(worker: DecodeWorker, t: float = 0.0) -> dict[Key, float]:
    """Run until idle; when each turn was complete."""
    ended = {}
    worker.plan(t)
    while (t := worker.next_t()) < inf:
        for done in worker.advance(t):
            ended[done] = t
        worker.plan(t)
    return ended


def test_equal_lengths_take_the_closed_form_time() -> None:
    worker = SkippingWorker(shape())
    for i in range(64):
        worker.add(0.0, Request(key(i), 100, 500))
    ended = drain(worker)
    expected = 64 * 100 * 1e-4 + DECODE.seconds(500, 64, 64 * 100)
    assert list(ended.values()) == pytest.approx([expected] * 64)
    assert worker.stats.decoded_tokens == 64 * 500
    assert worker.stats.preemptions == worker.stats.evictions == 0


def test_drain_time_is_the_sum_over_batch_sizes() -> None:
    """TailSieve's form: sorted lengths, each stretch at the step time of its batch size."""
    flat = DecodeCost(b=0.0, b0=0.004, c=5e-4, a=0.0, d=0.001)
    worker = SkippingWorker(
        Shape(tp=1, decode=flat, prefill=PrefillCost(per_token=0.0), kv_tokens=10**9)
    )
    lengths = sorted((30, 70, 70, 200, 1000), reverse=True)
    for i, length in enumerate(lengths):
        worker.add(0.0, Request(key(i), 1, length))
    step = [flat.step_seconds(n, 0) if n else 0.0 for n in range(len(lengths) + 1)]
    expected = sum(length * (step[j + 1] - step[j]) for j, length in enumerate(lengths))
    assert max(drain(worker).values()) == pytest.approx(expected)


def test_cached_context_is_not_prefilled_again() -> None:
    worker = SkippingWorker(shape())
    worker.add(0.0, Request(key(0), 100, 10))
    drain(worker)
    worker.add(5.0, Request(key(0), 130, 10))
    drain(worker, 5.0)
    assert worker.stats.prefilled_tokens == 130 - 10


def test_context_computed_ahead_is_not_prefilled_again() -> None:
    worker = SkippingWorker(shape())
    worker.add(0.0, Request(key(0), 100, 0))
    assert drain(worker) == {}
    worker.add(5.0, Request(key(0), 130, 10))
    ended = drain(worker, 5.0)
    assert ended[key(0)] == pytest.approx(5.0 + 30 * 1e-4 + DECODE.seconds(10, 1, 130))
    assert worker.stats.prefilled_tokens == 130


def test_context_that_was_to_be_computed_ahead_can_be_called_off() -> None:
    worker = SkippingWorker(shape())
    worker.add(0.0, Request(key(0), 100, 10))
    worker.plan(0.0)
    worker.add(0.0, Request(key(1), 100, 0))
    worker.forget(key(1))
    drain(worker)
    assert worker.stats.prefilled_tokens == 100


def test_forgotten_context_is() -> None:
    worker = SkippingWorker(shape())
    worker.add(0.0, Request(key(0), 100, 10))
    drain(worker)
    worker.forget(key(0))
    worker.add(5.0, Request(key(0), 130, 10))
    drain(worker, 5.0)
    assert worker.stats.prefilled_tokens == 230


def random_script(rng: random.Random) -> list[tuple[float, str, Request]]:
    script = []
    t = 0.0
    for i in range(rng.randint(5, 25)):
        t += rng.choice((0.0, rng.expovariate(4)))
        script.append((t, "add", Request(key(i), rng.randint(1, 80), rng.randint(1, 60))))
        if rng.random() < 0.3:
            script.append((t + rng.random(), "warm", Request(key(100 + i), rng.randint(1, 90), 0)))
            script.append((t + 1.5, "add", Request(key(100 + i), rng.randint(90, 120), 9)))
        if rng.random() < 0.2:
            script.append((t + rng.random(), "abort", Request(key(rng.randint(0, i)), 0, 0)))
    return sorted(script, key=lambda item: item[0])


def play(worker: DecodeWorker, rng: random.Random) -> list[tuple[str, Key, float]]:
    """Turns arrive, are aborted, and come back after a pause with a longer context, twice."""
    history: list[tuple[str, Key, float]] = []
    pending = random_script(rng)
    returns: dict[Key, int] = {}
    live: set[Key] = set()
    while True:
        t = min(worker.next_t(), pending[0][0] if pending else inf)
        if t == inf:
            return history
        if t == worker.next_t():
            for done in worker.advance(t):
                live.discard(done)
                history.append(("done", done, t))
                if returns.setdefault(done, 0) < 2:
                    returns[done] += 1
                    later = Request(done, 150 * returns[done], 20 + int(done[1]))
                    pending.append((t + 0.3 + 1e-3 * math.pi, "add", later))
                    pending.sort(key=lambda item: item[0])
                elif int(done[1]) % 2:
                    worker.forget(done)
        while pending and pending[0][0] == t:
            _, kind, request = pending.pop(0)
            if kind == "warm":
                worker.add(t, Request(request.key, request.context_tokens, 0))
            elif kind == "add":
                live.add(request.key)
                worker.add(t, Request(request.key, request.context_tokens, request.new_tokens))
            elif request.key in live:
                live.discard(request.key)
                history.append((f"abort {worker.abort(t, request.key)}", request.key, t))
        worker.plan(t)


@pytest.mark.parametrize("kv_tokens", [10**9, 700, 420])
@pytest.mark.parametrize("seed", range(60))
def test_skipping_equals_stepping(seed: int, kv_tokens: int) -> None:
    fast, slow = SkippingWorker(shape(kv_tokens)), StepwiseWorker(shape(kv_tokens))
    fast_history = play(fast, random.Random(seed))
    slow_history = play(slow, random.Random(seed))
    assert [entry[:2] for entry in fast_history] == [entry[:2] for entry in slow_history]
    assert [entry[2] for entry in fast_history] == pytest.approx([e[2] for e in slow_history])
    assert fast.stats.preemptions == slow.stats.preemptions
    assert fast.stats.evictions == slow.stats.evictions
    assert fast.stats.prefilled_tokens == slow.stats.prefilled_tokens
    assert fast.stats.decoded_tokens == slow.stats.decoded_tokens
    assert fast.stats.decode_seconds == pytest.approx(slow.stats.decode_seconds)


def test_small_memory_really_preempts_and_evicts() -> None:
    totals = [0, 0]
    for seed in range(10):
        worker = SkippingWorker(shape(420))
        play(worker, random.Random(seed))
        totals[0] += worker.stats.preemptions
        totals[1] += worker.stats.evictions
    assert min(totals) > 10
