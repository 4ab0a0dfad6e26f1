"""What work costs in seconds: decoding and prefill, by shape of worker.

One decode step of a continuous batch of `n` sequences with `kv` tokens in memory takes

    d + a * kv + max(b, b0 + c * n)

(the inter-token latency model that PivotRL, arXiv 2610.16866, fits per model and tensor-parallel
degree). While the batch does not change, `kv` grows by `n` a step, so the time of `k` steps is a
quadratic in `k` and needs no loop; its inverse says how many steps fit into a time.

`PUBLISHED` holds constants from that paper's code. `libra_shapes` is a table by tensor-parallel
degree for Qwen3-14B on A800. A pure roofline makes the widest degree win everywhere, which is not
what is measured, so per-sequence and communication terms are added: batches of 512 then run
3.25 : 1 on 8 x TP1 against 1 x TP8 for sequences up to 2 k tokens (Libra reports 3.13 : 1), and
1 : 1.8 for 16-32 k tokens with tight memory (Libra: 1 : 2.8; with roomy memory TP1 stays ahead
here). Libra reports nothing for TP2 and TP4: those rows are interpolated, and results that hang on
them are as good as the interpolation.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

_ROUNDING = 1e-9
"""Share of a step by which a time may miss a step boundary and still count as on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCost:
    """Seconds of decode steps; constants in seconds."""

    b: float
    """Floor of a step: reading the weights."""
    b0: float
    c: float
    """Per sequence in the batch."""
    a: float
    """Per token in memory."""
    d: float
    """Per step, whatever is in it."""

    def step_seconds(self, num_running: int, kv_tokens: float) -> float:
        return self.d + self.a * kv_tokens + max(self.b, self.b0 + self.c * num_running)

    def seconds(self, steps: int, num_running: int, kv_tokens: float) -> float:
        """Time of `steps` steps of a batch that does not change and holds `kv_tokens` at first."""
        growth = self.a * num_running * steps * (steps - 1) / 2
        return steps * self.step_seconds(num_running, kv_tokens) + growth

    def steps_to_reach(self, seconds: float, num_running: int, kv_tokens: float) -> int:
        """The fewest steps that take at least `seconds`; a hair under a boundary counts as on it."""
        first = self.step_seconds(num_running, kv_tokens)
        half_growth = self.a * num_running / 2
        linear = first - half_growth
        root = 2 * seconds / (linear + sqrt(linear * linear + 4 * half_growth * seconds))
        return max(0, ceil(root - _ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCost:
    """Seconds to compute keys and values of new tokens after a context."""

    per_token: float
    per_token_pair: float = 0.0
    """Attention: per new token and token before it."""

    def seconds(self, new_tokens: int, context_before: int) -> float:
        pairs = new_tokens * (context_before + new_tokens / 2)
        return self.per_token * new_tokens + self.per_token_pair * pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of worker: how wide it is, how fast, and how much it holds."""

    tp: int
    decode: DecodeCost
    prefill: PrefillCost
    kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCost:
    """Seconds of an optimizer step on workers that share its tokens evenly."""

    per_token: float
    """On one worker."""
    fixed_s: float = 0.0
    """Whatever the number of workers: optimizer, reductions, publishing."""

    def seconds(self, tokens: float, num_workers: int) -> float:
        return self.fixed_s + self.per_token * tokens / num_workers


PUBLISHED: dict[str, DecodeCost] = {
    "qwen2.5-7b-tp1": DecodeCost(b=0.00514, b0=0.00307, c=8.0e-5, a=3.71e-8, d=0.00051),
    "qwen3-8b-tp1": DecodeCost(b=0.00575, b0=0.00402, c=7.6e-5, a=8.57e-8, d=0.00108),
    "r1-distill-32b-tp2": DecodeCost(b=0.01188, b0=0.01163, c=7.1e-5, a=9.03e-8, d=0.00107),
    "qwen2.5-72b-tp8": DecodeCost(b=0.00902, b0=0.00720, c=1.25e-4, a=2.63e-8, d=0.00149),
    "qwen3-30b-a3b-tp2": DecodeCost(b=0.00378, b0=0.00452, c=4.55e-5, a=3.58e-8, d=0.00152),
    "qwen3-next-80b-a3b-tp8": DecodeCost(b=0.00460, b0=0.00514, c=6.67e-5, a=1.55e-8, d=0.00124),
    "qwen3.5-122b-a10b-tp4": DecodeCost(b=0.00593, b0=0.00729, c=1.67e-4, a=3.18e-8, d=0.00215),
    "qwen3.5-122b-a10b-tp8": DecodeCost(b=0.00542, b0=0.00589, c=1.42e-4, a=2.0e-8, d=0.00123),
}
"""Fitted on H20 and published in the code of PivotRL (repository victor-yfzhao/psrl)."""

_WEIGHT_BYTES = 28e9
_KV_BYTES_PER_TOKEN = 160 * 1024
_BANDWIDTH = 0.85 * 2.0e12
_FLOPS = 0.55 * 312e12
_PARAMETERS = 14e9
_MEMORY_BYTES = 80e9
_WORKSPACE_BYTES = 4.5e9

_SEQUENCE_SECONDS = {1: 0.8e-4, 2: 1.4e-4, 4: 2.0e-4, 8: 2.6e-4}
_COMMUNICATION_SECONDS = {1: 0.0, 2: 0.004, 4: 0.005, 8: 0.006}


def libra_shapes(*, memory_share: float = 0.5) -> dict[int, Shape]:
    """Qwen3-14B on A800 by tensor-parallel degree.

    `memory_share` is the part of accelerator memory that serving may use: 0.5 leaves a TP1 worker
    46 k tokens (tight), 0.85 leaves it 218 k (roomy).
    """
    return {tp: _libra_shape(tp, memory_share) for tp in _SEQUENCE_SECONDS}


def _libra_shape(tp: int, memory_share: float) -> Shape:
    memory = tp * (memory_share * _MEMORY_BYTES - _WORKSPACE_BYTES) - _WEIGHT_BYTES
    read_weights = _WEIGHT_BYTES / tp / _BANDWIDTH
    return Shape(
        tp=tp,
        decode=DecodeCost(
            b=read_weights,
            b0=read_weights,
            c=_SEQUENCE_SECONDS[tp],
            a=_KV_BYTES_PER_TOKEN / tp / _BANDWIDTH,
            d=_COMMUNICATION_SECONDS[tp],
        ),
        prefill=PrefillCost(per_token=2 * _PARAMETERS / tp / _FLOPS),
        kv_tokens=int(memory / _KV_BYTES_PER_TOKEN),
    )
