"""Keys and values of all slots, and the block of ids that one forward pass adds to them.

Every slot owns one preallocated row, so that sequences of any lengths decode together, nothing is
copied when one grows or ends, and attention reads the rows where they lie. A row has one
position more than the context: what padding computes is written there and never read as context.

Legend: N rows of a block, Q ids a row, L positions attended to, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LENGTH_STEP = 16
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
    places: NDArray[np.int64]
    """[N, Q] place of each id in its context; 0 for padding."""
    positions: Tensor
    """The same on the device."""
    writes: Tensor
    """[N, Q] place in the slot where keys and values go; the spare one for padding."""
    slots: Tensor
    """[N]"""
    is_dense: bool
    """`slots` is 0, 1, ... N-1, some of them idle."""
    rows: Tensor
    """The row of each piece of work, in the order given."""
    is_fresh: bool
    """Every row starts its context, so that the block's own keys and values are all there are."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[N] how many positions each row's last id attends to, its own included."""
        return self.places[:, -1] + 1


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
        used, starts, chunks = zip(*work, strict=True)
        width = max(map(len, chunks))
        num_dense = max(used) + 1
        is_dense = width == 1 and len(work) >= _DENSE_SHARE * num_dense
        slots = np.arange(num_dense) if is_dense else np.array(used)
        rows = np.array(used) if is_dense else np.arange(len(work))
        shape = (len(slots), width)
        ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        writes = np.full(shape, self.context_tokens)
        if width == 1:
            row, column, place = rows, np.zeros_like(rows), np.array(starts)
        else:
            sizes = np.array([len(chunk) for chunk in chunks])
            row = np.repeat(rows, sizes)
            # How many ids of the same piece come before each id.
            before = np.arange(len(row)) - np.repeat(sizes.cumsum() - sizes, sizes)
            column = before + np.repeat(width - sizes, sizes)
            place = before + np.repeat(starts, sizes)
        ids[row, column] = [i for chunk in chunks for i in chunk]
        positions[row, column] = writes[row, column] = place
        return Block(
            ids=self._tensor(ids),
            places=positions,
            positions=self._tensor(positions),
            writes=self._tensor(writes),
            slots=self._tensor(slots),
            is_dense=is_dense,
            rows=self._tensor(rows),
            is_fresh=width > 1 and not any(starts),
        )

    def span(self, block: Block) -> int:
        """Positions that every row of the block fits in, in a size that recurs."""
        return min(round_up(int(block.lengths.max())), self.context_tokens)

    def mask(self, block: Block, length: int) -> Tensor:
        """[N, 1, Q, length] added to scores: minus a lot at places that come after the id's own."""
        return self._mask(np.arange(length) > block.places[:, None, :, None])

    def fresh_mask(self, block: Block) -> Tensor:
        """[N, 1, Q, Q] over the ids of a fresh block itself: those after each id, and padding.

        Padding looks at itself, because a softmax over nothing would not be finite.
        """
        width = block.ids.shape[1]
        seen, seeing = np.arange(width), np.arange(width)[:, None]
        is_padding = seen < width - block.lengths[:, None, None, None]
        return self._mask((seen > seeing) | (is_padding & (seen < seeing)))

    def store(self, layer: int, block: Block, keys: Tensor, values: Tensor) -> None:
        """Put the block's `keys` and `values`, [N, H, Q, D], where they belong."""
        if layer not in self._layers:
            self._layers[layer] = (self._allocate(keys), self._allocate(values))
        slots = block.slots[:, None]
        for stored, new in zip(self._layers[layer], (keys, values), strict=True):
            stored[slots, :, block.writes] = new.transpose(1, 2)

    def copy(self, source: int, target: int, length: int) -> None:
        """Put the first `length` keys and values of one slot into another."""
        for stored in chain.from_iterable(self._layers.values()):
            stored[target, :, :length] = stored[source, :, :length]

    def rows(self, layer: int, block: Block, length: int) -> tuple[Tensor, Tensor]:
        """The first `length` keys and values of the block's rows, [N, H, length, D]."""
        keys, values = (stored[:, :, :length] for stored in self._layers[layer])
        if block.is_dense:
            return keys[: len(block.slots)], values[: len(block.slots)]
        return keys.index_select(0, block.slots), values.index_select(0, block.slots)

    def slot(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """The first `length` keys and values of one slot, [1, H, length, D]."""
        keys, values = self._layers[layer]
        return keys[slot : slot + 1, :, :length], values[slot : slot + 1, :, :length]

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _mask(self, is_hidden: NDArray[np.bool_]) -> Tensor:
        hidden = torch.from_numpy(is_hidden).to(self.device)
        return hidden.to(self.dtype).mul_(torch.finfo(self.dtype).min)

    def _allocate(self, like: Tensor) -> Tensor:
        shape = (self.num_slots, like.shape[1], self.context_tokens + 1, like.shape[3])
        # Not left uninitialised: idle rows are computed, and a masked NaN is still a NaN.
        return torch.zeros(shape, dtype=like.dtype, device=self.device)


def round_up(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP
