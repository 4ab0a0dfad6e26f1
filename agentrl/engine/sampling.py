"""Draws one token a row from logits, each row by its own rules and its own random numbers.

Randomness is counter-based: draw i of a request is a pure function of (seed, i), so a request
gives the same tokens alone, in any batch, on any number of slots, and after it was moved.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.engine.engine import Sampling

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Drawn(NamedTuple):
    ids: list[int]
    logprobs: list[float]


class Sampler:
    """The rules of a fixed list of rows, in the shape the arithmetic wants them.

    Made when the list of rows changes, used for as many steps as it stays the same.
    """

    def __init__(self, rows: Sequence[Sampling], device: torch.device) -> None:
        self._device = device
        self._streams = np.array([stream_of(row.seed) for row in rows], dtype=np.uint64)
        # Each of these is None when no row needs it.
        self._temperatures = self._is_greedy = self._truncated = None
        temperatures = [row.temperature for row in rows]
        if any(temperature != 1 for temperature in temperatures):
            column = torch.tensor(temperatures, device=device)[:, None]
            self._is_greedy = column == 0 if 0 in temperatures else None
            self._temperatures = column.masked_fill(column == 0, 1.0)
        if truncated := [i for i, row in enumerate(rows) if _truncates(row)]:
            self._truncated = torch.tensor(truncated, device=device)
            self._top_p = torch.tensor([rows[i].top_p for i in truncated], device=device)
            self._top_k = torch.tensor([rows[i].top_k for i in truncated], device=device)

    def draw(self, logits: Tensor, draws: Sequence[int]) -> Drawn:
        """`logits` [N, V]; `draws` [N] counts the tokens each request has drawn before.

        The log-prob of a row whose logits are not finite is not finite either.
        """
        logits = logits.float()
        if self._temperatures is not None:
            logits = logits / self._temperatures
        if self._truncated is not None:
            kept = keep_top(logits[self._truncated], top_p=self._top_p, top_k=self._top_k)
            logits = logits.index_copy(0, self._truncated, kept)
        logprobs = logits.log_softmax(-1)
        # Cumulated in double precision: over a large vocabulary, sums in single precision would
        # move the borders between tokens by more than their probability.
        cumulated = logprobs.exp().cumsum(-1, dtype=torch.float64)
        uniform = torch.from_numpy(uniforms(self._streams, draws)).to(self._device)
        ids = torch.searchsorted(cumulated, uniform[:, None] * cumulated[:, -1:], right=True)
        # in a row that is not finite it finds no token: the last one's log-prob shows what is wrong
        ids = ids.clamp_(max=logits.shape[-1] - 1)
        if self._is_greedy is not None:
            ids = torch.where(self._is_greedy, logits.argmax(-1, keepdim=True), ids)
        chosen = logprobs.gather(-1, ids)
        return Drawn(ids[:, 0].tolist(), chosen[:, 0].tolist())


def keep_top(logits: Tensor, *, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Minus infinity for tokens outside the `top_k` likeliest, then outside the nucleus `top_p`.

    The likeliest token always stays. `top_p` and `top_k` are [N]; `top_k` 0 keeps all.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[-1], device=logits.device)
    beyond_k = (ranks >= top_k[:, None]) & (top_k > 0)[:, None]
    ordered = ordered.masked_fill(beyond_k, -torch.inf)
    probabilities = ordered.softmax(-1)
    mass_before = probabilities.cumsum(-1) - probabilities
    ordered = ordered.masked_fill((mass_before >= top_p[:, None]) & (ranks > 0), -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ordered)


@lru_cache(maxsize=4096)
def stream_of(seed: int) -> int:
    """Where the random numbers of `seed` start; near seeds start far apart."""
    return int(_mixed(np.array([(seed + _GOLDEN) & _MASK], dtype=np.uint64))[0])


def uniforms(streams: NDArray[np.uint64], draws: Sequence[int]) -> NDArray[np.float64]:
    """Number `draws[i]` of stream i, in [0, 1): the splitmix64 generator, read by position."""
    counters = np.asarray(draws, dtype=np.uint64) + np.uint64(1)
    mixed = _mixed(streams + counters * np.uint64(_GOLDEN))
    return (mixed >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _truncates(row: Sampling) -> bool:
    """Greedy rows keep all tokens, and report log-probs at temperature 1."""
    return row.temperature > 0 and (row.top_p < 1 or row.top_k > 0)
