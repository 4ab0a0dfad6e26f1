"""Keys and values of all slots, and the block of ids that one forward pass adds to them.

Every slot owns one preallocated row, so that sequences of any lengths decode together, nothing is
copied when one grows, ends or joins, and attention reads the rows where they lie. A row has one
position more than the context: what padding computes is written there and never read as context.

Legend: S slots, N rows of a block, Q ids a row, L positions attended to, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_LENGTH_STEP = 16
"""Attention spans a multiple of this, so that buffer sizes recur and rows stay aligned."""
_DENSE_SHARE = 0.6
"""When a block uses at least this share of the slots up to its highest, idle slots are computed
too: reading all rows in place costs less than copying the wanted ones together."""


class Work(NamedTuple):
    """Ids of one slot to compute."""

    slot: int
    start: int
    """Place of the first id in its context; all before it are in the slot."""
    ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Rows of ids, aligned right: column -1 holds every row's last id, padding comes first."""

    ids: Tensor
    """[N, Q]"""
    positions: Tensor
    """[N, Q] place of each id in its context; 0 for padding."""
    writes: Tensor
    """[N, Q] place in the slot where keys and values go; the spare one for padding."""
    slots: Tensor
    """[N]"""
    is_dense: bool
    """`slots` is 0, 1, ... N-1, some of them idle."""
    mask: Tensor
    """[N, 1, Q, L] added to attention scores; minus a lot where an id may not look."""
    rows: Tensor
    """The row of each piece of work, in the order given."""


class KVCache:
    def __init__(
        self, *, num_slots: int, context_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_slots = num_slots
        self.context_tokens = context_tokens
        self.dtype = dtype
        self.device = device
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def block(self, work: Sequence[Work]) -> Block:
        """The block that computes all of `work`, one row each."""
        sizes = np.array([len(piece.ids) for piece in work])
        width = int(sizes.max())
        used = [piece.slot for piece in work]
        num_dense = max(used) + 1
        is_dense = width == 1 and len(work) >= _DENSE_SHARE * num_dense
        slots, rows = (range(num_dense), used) if is_dense else (used, range(len(work)))
        # One entry an id: its row, how many ids of its piece come before it, its column and place.
        row = np.repeat(rows, sizes)
        before = np.arange(len(row)) - np.repeat(sizes.cumsum() - sizes, sizes)
        column = before + width - np.repeat(sizes, sizes)
        place = before + np.repeat([piece.start for piece in work], sizes)
        shape = (len(slots), width)
        ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        writes = np.full(shape, self.context_tokens)
        ids[row, column] = [i for piece in work for i in piece.ids]
        positions[row, column] = writes[row, column] = place
        places = torch.from_numpy(positions).to(self.device)
        return Block(
            ids=torch.from_numpy(ids).to(self.device),
            positions=places,
            writes=torch.from_numpy(writes).to(self.device),
            slots=torch.tensor(slots, device=self.device),
            is_dense=is_dense,
            mask=self._mask(places, longest=int(positions.max()) + 1),
            rows=torch.tensor(rows, device=self.device),
        )

    def append(
        self, layer: int, block: Block, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store `keys` and `values` [N, H, Q, D]; return all of the block's rows, [N, H, L, D]."""
        if layer not in self._layers:
            self._layers[layer] = (self._allocate(keys), self._allocate(values))
        stored_keys, stored_values = self._layers[layer]
        rows = block.slots[:, None]
        stored_keys[rows, :, block.writes] = keys.transpose(1, 2)
        stored_values[rows, :, block.writes] = values.transpose(1, 2)
        return _read(stored_keys, block), _read(stored_values, block)

    def _mask(self, positions: Tensor, *, longest: int) -> Tensor:
        length = min(-(-longest // _LENGTH_STEP) * _LENGTH_STEP, self.context_tokens)
        is_ahead = torch.arange(length, device=self.device) > positions[:, None, :, None]
        mask = torch.zeros(is_ahead.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(is_ahead, torch.finfo(self.dtype).min)

    def _allocate(self, like: Tensor) -> Tensor:
        shape = (self.num_slots, like.shape[1], self.context_tokens + 1, like.shape[3])
        # Not left uninitialised: idle rows are computed, and a masked NaN is still a NaN.
        return torch.zeros(shape, dtype=like.dtype, device=self.device)


def _read(stored: Tensor, block: Block) -> Tensor:
    seen = stored[:, :, : block.mask.shape[-1]]
    return seen[: len(block.slots)] if block.is_dense else seen.index_select(0, block.slots)
