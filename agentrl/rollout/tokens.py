"""The token builder: the only code that makes training rows.

It is append-only. The engine gets its ids and gives ids back, so nothing is rendered or tokenized
twice, and what a trainer sees is what the engine sampled.

Invariants
- All columns have equal lengths after every append.
- Exactly the sampled ids carry log-probs and versions, the sampled stop id included.
- The context of a later turn starts with all ids of the earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agentrl.types import Origin, Row, Segment

NO_VERSION = -1


class TurnColumns(NamedTuple):
    """Sampled tokens: three columns of equal length."""

    ids: list[int]
    logprobs: list[float]
    policy_versions: list[int]


class TokenBuilder:
    def __init__(self) -> None:
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._runs: list[tuple[Origin, int, int]] = []
        """Origin, turn and length of each run of ids."""
        self._turn = -1

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def context_ids(self) -> list[int]:
        """What the next turn continues."""
        return list(self._ids)

    @property
    def num_sampled(self) -> int:
        return sum(length for origin, _, length in self._runs if origin is Origin.SAMPLED)

    @property
    def num_turns(self) -> int:
        """Turns of which at least one token was sampled."""
        return self._turn + 1

    @property
    def turn_ids(self) -> list[int]:
        """Sampled ids of the turn under way, or of the last one."""
        start = 0
        for origin, turn, length in self._runs:
            if origin is Origin.SAMPLED and turn == self._turn:
                return self._ids[start : start + length]
            start += length
        return []

    @property
    def turn_columns(self) -> TurnColumns:
        """The turn under way, while nothing has been appended to it."""
        assert self._runs[-1][0] is Origin.SAMPLED, "the turn has been answered"
        last = slice(len(self._ids) - self._runs[-1][2], None)
        return TurnColumns(self._ids[last], self._logprobs[last], self._versions[last])

    def start(self, ids: Sequence[int]) -> None:
        assert not self._ids, "a row starts once"
        self._append(Origin.PROMPT, ids)

    def sampled(
        self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> None:
        """Tokens of the turn under way; the first ones after other text begin a turn."""
        assert self._runs, "sampling needs a context"
        self._append(Origin.SAMPLED, ids, logprobs, versions)

    def tool(self, ids: Sequence[int]) -> None:
        self._append(Origin.TOOL, ids)

    def reply(self, ids: Sequence[int]) -> None:
        self._append(Origin.REPLY, ids)

    def scaffold(self, ids: Sequence[int]) -> None:
        self._append(Origin.SCAFFOLD, ids)

    def rows(self) -> tuple[Row, ...]:
        """One row, or none when nothing was appended."""
        if not self._ids:
            return ()
        ids = np.array(self._ids, np.int32)
        logprobs = np.array(self._logprobs, np.float32)
        versions = np.array(self._versions, np.int32)
        segments, start = [], 0
        for origin, turn, length in self._runs:
            span = slice(start, start + length)
            is_sampled = origin is Origin.SAMPLED
            segments.append(
                Segment(
                    origin=origin,
                    turn=turn,
                    ids=ids[span],
                    logprobs=logprobs[span] if is_sampled else None,
                    policy_versions=versions[span] if is_sampled else None,
                )
            )
            start += length
        return (tuple(segments),)

    def _append(
        self,
        origin: Origin,
        ids: Sequence[int],
        logprobs: Sequence[float] | None = None,
        versions: Sequence[int] | None = None,
    ) -> None:
        if not ids:
            return
        self._ids += ids
        self._logprobs += [0.0] * len(ids) if logprobs is None else logprobs
        self._versions += [NO_VERSION] * len(ids) if versions is None else versions
        if origin is Origin.SAMPLED and self._runs[-1][0] is origin:
            self._runs[-1] = (origin, self._turn, self._runs[-1][2] + len(ids))
        else:
            self._turn += origin is Origin.SAMPLED
            self._runs.append((origin, max(self._turn, 0), len(ids)))
        assert len(self._ids) == len(self._logprobs) == len(self._versions)
