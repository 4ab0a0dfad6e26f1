"""Which slots hold the beginning of a prompt, so that it is copied there and not computed again.

The attempts of a group begin alike, and so do the questions to a judge and whatever has one system
prompt. A prompt is cut into blocks of `BLOCK_TOKENS` ids, and a block's name stands for all ids up to
its end: a chain of hashes, after vLLM's automatic prefix caching (Kwon et al., 2023).

Invariants
- A listed slot holds keys and values of the listed ids, computed by the newest weights.
- Names only find candidates. What is copied was compared id by id.
- The last id of a prompt is never shared, because its logits are wanted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from agentrl.engine.slots import common_prefix

BLOCK_TOKENS = 16
"""Below this, copying saves less than looking costs."""


class Prefix(NamedTuple):
    slot: int
    length: int
    """Of the ids that it has in common."""


class _Held(NamedTuple):
    ids: list[int]
    names: list[int]
    """Of its first blocks."""


class PrefixIndex:
    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self._block_tokens = block_tokens
        self._holders: defaultdict[int, set[int]] = defaultdict(set)
        """Slots by the name of a block."""
        self._held: dict[int, _Held] = {}
        """By slot."""

    def names(self, ids: Sequence[int]) -> list[int]:
        """Of the blocks that a prompt may share, in order."""
        names, name, size = [], 0, self._block_tokens
        for start in range(0, len(ids) - size, size):
            name = hash((name, *ids[start : start + size]))
            names.append(name)
        return names

    def num_blocks(self, num_tokens: int) -> int:
        """Whole ones."""
        return num_tokens // self._block_tokens

    def find(self, ids: list[int], names: Sequence[int]) -> Prefix | None:
        """The slot that holds most of these ids."""
        known = list(takewhile(self._holders.__contains__, names))
        for number in range(len(known), 0, -1):
            length = number * self._block_tokens
            for slot in self._holders[known[number - 1]]:
                held = self._held[slot].ids
                if held[:length] == ids[:length]:
                    return Prefix(slot, min(common_prefix(held, ids), len(ids) - 1))
        return None

    def add(self, slot: int, ids: Sequence[int], names: Sequence[int]) -> None:
        """The slot holds keys and values of the blocks of `ids`, which have these `names`."""
        self.cut(slot, 0)
        self._held[slot] = _Held(list(ids), list(names))
        for name in names:
            self._holders[name].add(slot)

    def cut(self, slot: int, num_tokens: int) -> None:
        """After so many ids the slot will hold something else; it need not be listed."""
        if not (held := self._held.get(slot)):
            return
        num_kept = self.num_blocks(num_tokens)
        for name in held.names[num_kept:]:
            self._holders[name].discard(slot)
            if not self._holders[name]:
                del self._holders[name]
        del held.names[num_kept:]
        del held.ids[num_tokens:]
        if not held.names:
            del self._held[slot]

    def clear(self) -> None:
        self._holders.clear()
        self._held.clear()
