"""Packs samples of any length into microbatches that one forward pass can take.

A microbatch is a rectangle of R rows and T columns. A row holds one sample, and shorter ones
behind it where they fit. Position ids start again with each sample, which is how Hugging Face
models learn that attention must not cross from one to the next, so a packed sample gets the
log-probs that it would get alone. Rows that hold one sample each need no attention mask at all.

Invariants
- R * T is at most the token budget. A sample longer than that gets a microbatch of its own.
- Every sample is in exactly one microbatch, and the cut depends on nothing but lengths and order.
- Loss columns exist for sampled tokens alone: what stands at other positions never meets
  arithmetic, so a NaN there is harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

import numpy as np
import torch
from torch import Tensor

from agentrl.types import TrainingSample

# Shapes: R rows, T columns of a row, N sampled tokens of the microbatch.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledTokens:
    """The loss columns, one entry a sampled token, sample by sample."""

    logprobs_N: Tensor
    """Of the rollout."""
    advantages_N: Tensor
    weights_N: Tensor
    """What the token counts in the loss of the whole batch; they sum to 1 over all microbatches."""
    is_replayed_N: Tensor
    """Of a sample that a step before trained on too."""

    def to(self, device: torch.device) -> SampledTokens:
        return SampledTokens(
            logprobs_N=self.logprobs_N.to(device),
            advantages_N=self.advantages_N.to(device),
            weights_N=self.weights_N.to(device),
            is_replayed_N=self.is_replayed_N.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One forward pass. `members` are indices into the batch, in the order of the loss columns."""

    ids_RT: Tensor
    positions_RT: Tensor
    predicted_at_N: Tensor
    """Where in the flattened rectangle the prediction of each sampled token stands."""
    targets_N: Tensor
    tokens: SampledTokens
    members: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Padding included."""
        return self.ids_RT.numel()


def pack(
    samples: Sequence[TrainingSample],
    *,
    budget: int,
    aggregate: Literal["token_mean", "sequence_mean"],
) -> tuple[MicroBatch, ...]:
    """No samples, no microbatches."""
    if not samples:
        return ()
    weights = _token_weights(samples, aggregate)
    return tuple(
        _fill(samples, rows, weights) for rows in _arrange([len(s) for s in samples], budget)
    )


def share_of(batches: Sequence[MicroBatch], *, rank: int, size: int) -> list[MicroBatch]:
    """The microbatches of one replica of `size`: the largest first, each to whoever has least."""
    loads = [0] * size
    mine = []
    for batch in sorted(batches, key=lambda batch: -batch.num_tokens):
        owner = loads.index(min(loads))
        loads[owner] += batch.num_tokens
        if owner == rank:
            mine.append(batch)
    return mine


def _token_weights(
    samples: Sequence[TrainingSample], aggregate: Literal["token_mean", "sequence_mean"]
) -> list[float]:
    """What one sampled token of each sample counts in the mean over the batch."""
    num_sampled = [int(sample.loss_mask.sum()) for sample in samples]
    assert all(num_sampled), "a sample without a sampled token has nothing to train on"
    match aggregate:
        case "token_mean":
            return [1 / sum(num_sampled)] * len(samples)
        case "sequence_mean":
            return [1 / (len(samples) * count) for count in num_sampled]
    assert_never(aggregate)


def _arrange(lengths: Sequence[int], budget: int) -> list[list[list[int]]]:
    """Microbatches as lists of rows, rows as lists of samples: the longest first, first fit.

    The longest sample left sets the length of the rows, so that lengths in one microbatch are
    close and little is spent on padding, or on attention between samples that is masked anyway.
    """
    left = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    arranged = []
    while left:
        row_length = lengths[left[0]]
        rows: list[list[int]] = [[] for _ in range(max(1, budget // row_length))]
        room = [row_length] * len(rows)
        rest = []
        for index in left:
            row = next((r for r, free in enumerate(room) if free >= lengths[index]), None)
            if row is None:
                rest.append(index)
                continue
            rows[row].append(index)
            room[row] -= lengths[index]
        arranged.append([row for row in rows if row])
        left = rest
    return arranged


def _fill(
    samples: Sequence[TrainingSample], rows: list[list[int]], weights: list[float]
) -> MicroBatch:
    num_columns = max(sum(len(samples[index]) for index in row) for row in rows)
    ids = np.zeros((len(rows), num_columns), dtype=np.int64)
    # Padding stands at the end of a row, where causal attention hides it from every sample.
    positions = np.tile(np.arange(num_columns), (len(rows), 1))
    predicted_at = []
    for number, row in enumerate(rows):
        start = 0
        for index in row:
            sample = samples[index]
            end = start + len(sample)
            ids[number, start:end] = sample.ids
            positions[number, start:] = np.arange(num_columns - start)
            sampled_at = np.flatnonzero(sample.loss_mask)
            predicted_at.append(number * num_columns + start + sampled_at - 1)
            start = end
    members = tuple(index for row in rows for index in row)
    num_sampled = torch.tensor([int(samples[i].loss_mask.sum()) for i in members])
    return MicroBatch(
        ids_RT=torch.from_numpy(ids),
        positions_RT=torch.from_numpy(positions),
        predicted_at_N=torch.from_numpy(np.concatenate(predicted_at)),
        targets_N=_sampled_column([samples[i] for i in members], "ids").long(),
        tokens=SampledTokens(
            logprobs_N=_sampled_column([samples[i] for i in members], "rollout_logprobs"),
            advantages_N=_sampled_column([samples[i] for i in members], "advantages"),
            weights_N=torch.tensor([weights[i] for i in members]).repeat_interleave(num_sampled),
            is_replayed_N=torch.tensor([samples[i].is_replayed for i in members]).repeat_interleave(
                num_sampled
            ),
        ),
        members=members,
    )


def _sampled_column(
    samples: Sequence[TrainingSample],
    name: Literal["ids", "rollout_logprobs", "advantages"],
) -> Tensor:
    return torch.from_numpy(
        np.concatenate([getattr(sample, name)[sample.loss_mask] for sample in samples])
    )
