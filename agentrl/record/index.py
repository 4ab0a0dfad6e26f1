"""The index of a run's trajectories: one short line each, enough for every table.

A row says what a trajectory is, how it ended and where its line and tokens lie, so that opening a
run reads no text at all. It is written after the line it points to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from agentrl.types import Json, Outcome, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow:
    """One trajectory, in short."""

    trajectory_id: str
    task_id: str
    group_id: str
    sibling: int
    attempt: int
    split: str
    step: int
    dropped: str | None
    advantage: float | None
    reward: float | None
    stop_reason: StopReason
    outcome: Outcome
    num_turns: int
    num_tokens: int
    num_sampled_tokens: int
    policy_versions: tuple[int, int] | None
    started_s: float
    seconds: float
    launch: int
    """Which launch of the run wrote it; a resumed run may do steps again."""
    chunk: int
    line_start: int
    line_bytes: int
    token_start: int
    """Offset into the chunk's token columns, in tokens; there are `num_tokens` of them."""

    @property
    def fate(self) -> str:
        """In a word: trained, evaluated, or why it was not trained on."""
        return self.dropped or ("trained" if self.split == "train" else "evaluated")

    @classmethod
    def parse(cls, line: dict[str, Any]) -> IndexRow:
        versions = line["policy_versions"]
        line["policy_versions"] = None if versions is None else tuple(versions)
        line["stop_reason"] = StopReason(line["stop_reason"])
        line["outcome"] = Outcome(line["outcome"])
        return cls(**line)


_PLACE = ("launch", "chunk", "line_start", "line_bytes")
_FROM_LINE = tuple(field.name for field in fields(IndexRow) if field.name not in _PLACE)


def index_line(
    line: Mapping[str, Json], *, launch: int, chunk: int, line_start: int, line_bytes: int
) -> dict[str, Json]:
    """The index row of a trajectory's line, and of where that line lies."""
    return {
        **{name: line[name] for name in _FROM_LINE},
        "launch": launch,
        "chunk": chunk,
        "line_start": line_start,
        "line_bytes": line_bytes,
    }
