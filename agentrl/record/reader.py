"""Reads a run folder, finished or still being written, without loading it.

Every call looks at the files anew and reads only what was added since, so a live run is followed
by calling again. Text and tokens are read for the trajectory that is asked for.

Invariant: rows of a launch that a resumed launch superseded are never given out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from safetensors import safe_open

from agentrl.record.chunks import Columns, read_tokens
from agentrl.record.codec import Fate, decode, decode_fate
from agentrl.record.index import IndexRow
from agentrl.record.jsonl import read_lines
from agentrl.record.launches import RunInfo, read_run
from agentrl.record.layout import RunLayout
from agentrl.types import Json, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrajectory:
    """A trajectory as it was, and what became of it."""

    trajectory: Trajectory
    fate: Fate
    row: IndexRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One step's use of a group that earlier steps had trained on."""

    launch: int
    """Which launch of the run did the step."""
    step: int
    group_id: str
    reuse: int
    """1 for the first time after the step that the group was fresh in."""
    staleness: int
    """How many optimizer steps old the oldest weights behind it were."""


class RunReader:
    """One run folder. Raises ValueError when it is none."""

    def __init__(self, path: Path) -> None:
        self.layout = RunLayout(path)
        self.info: RunInfo = read_run(self.layout)
        self._rows: list[IndexRow] = []
        self._index_end = 0

    def refresh(self) -> None:
        """Take in what was written since, a new launch too."""
        for end, line in read_lines(self.layout.index, self._index_end):
            self._rows.append(IndexRow.parse(line))
            self._index_end = end
        # after the rows, so that it knows the launch of each
        self.info = read_run(self.layout)

    @property
    def config_yaml(self) -> str:
        return self.layout.config.read_text()

    @property
    def summary(self) -> dict[str, Json] | None:
        """What the run came to; None while it goes on, or when it did not end well."""
        try:
            summary: dict[str, Json] = orjson.loads(self.layout.summary.read_bytes())
        except FileNotFoundError:
            return None
        return summary

    def rows(self, *, split: str | None = None, step: int | None = None) -> list[IndexRow]:
        """Index rows in the order written."""
        self.refresh()
        from_step = [self.info.superseded_from(n) for n in range(len(self.info.launches))]
        return [
            row
            for row in self._rows
            if row.step < from_step[row.launch]
            and (split is None or row.split == split)
            and (step is None or row.step == step)
        ]

    def steps(self, split: str | None = None) -> list[int]:
        """Steps that have trajectories, in order."""
        return sorted({row.step for row in self.rows(split=split)})

    def groups(self, step: int, split: str | None = None) -> dict[str, list[IndexRow]]:
        """A step's groups in the order they were written, siblings in order within."""
        groups: dict[str, list[IndexRow]] = {}
        for row in self.rows(step=step, split=split):
            groups.setdefault(row.group_id, []).append(row)
        for members in groups.values():
            members.sort(key=lambda row: (row.sibling, row.attempt))
        return groups

    def trajectory(self, row: IndexRow) -> RecordedTrajectory:
        """Text and tokens of one trajectory."""
        line = self.line(row)
        columns = read_tokens(self.layout, row.chunk, row.token_start, row.num_tokens)
        return RecordedTrajectory(trajectory=decode(line, columns), fate=decode_fate(line), row=row)

    def line(self, row: IndexRow) -> dict[str, Any]:
        """The text of one trajectory, as its line holds it."""
        with self.layout.chunk_text(row.chunk).open("rb") as file:
            file.seek(row.line_start)
            line: dict[str, Any] = orjson.loads(file.read(row.line_bytes))
        return line

    def metrics(self) -> list[dict[str, Json]]:
        """Lines of metrics in order; a step done again by a resumed launch counts once."""
        return list(self._lines_that_count(self.layout.metrics))

    def replays(self, *, step: int | None = None, group_id: str | None = None) -> list[Replay]:
        """Groups that steps trained on again, in the order of the steps."""
        return [
            replay
            for replay in (Replay(**line) for line in self._lines_that_count(self.layout.replayed))
            if (step is None or replay.step == step)
            and (group_id is None or replay.group_id == group_id)
        ]

    def _lines_that_count(self, path: Path) -> Iterator[dict[str, Json]]:
        """Without those of steps that a later launch did again."""
        lines = [line for _, line in read_lines(path)]
        # after the lines, so that it knows the launch of each
        self.info = read_run(self.layout)
        from_step = [self.info.superseded_from(n) for n in range(len(self.info.launches))]
        return (line for line in lines if line["step"] < from_step[line["launch"]])

    def training(self, step: int, trajectory_id: str) -> Columns | None:
        """What the trainer saw of a trajectory in a step, a value a token in each column.

        Rows of one trajectory are joined in the order the trainer had them. None when the step
        did not train on it, or its columns were not recorded.
        """
        path = self.layout.training_step(step)
        if not path.exists():
            return None
        with safe_open(path, framework="numpy") as file:
            spans = _spans_of(trajectory_id, orjson.loads(file.metadata()["samples"]))
            if not spans:
                return None
            columns = {name: file.get_slice(name) for name in list(file.keys())}
            return {
                name: np.concatenate([column[start:end] for start, end in spans])
                for name, column in columns.items()
            }


def _spans_of(trajectory_id: str, samples: list[tuple[str, int]]) -> list[tuple[int, int]]:
    spans = []
    start = 0
    for owner, length in samples:
        if owner == trajectory_id and length:
            spans.append((start, start + length))
        start += length
    return spans
