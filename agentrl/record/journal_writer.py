"""The writer of one process's part in the journal.

A turn and an end are handed to the system before the call returns, so a killed process loses
neither; what was answered goes with the next of them, or with `flush`. Nothing is forced to the
platter: a crash of the whole machine may cost the last seconds, and attempts go on from an earlier
turn then.

Invariants
- No method raises for the disk's sake. Lines that could not be written are counted; their attempts
  are known up to there.
- A part is deleted when none of its attempts is wanted any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agentrl.record.codec import token_columns
from agentrl.record.journal import (
    Answer,
    JournaledAttempt,
    SampledTurn,
    answer_line,
    attempt_lines,
    end_line,
    turn_line,
)
from agentrl.record.jsonl import AppendFile
from agentrl.types import Trajectory

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Kept:
    """What decides whether an attempt may be forgotten."""

    group_id: str
    split: str
    newest_version: int = -1
    is_ended: bool = False


@dataclass(slots=True)
class _Part:
    path: Path
    attempts: set[str] = field(default_factory=set)


class JournalWriter:
    """Used by one thread."""

    def __init__(self, folder: Path, *, number: int, name: str) -> None:
        """`number` is above that of every process that wrote to the folder before."""
        self.num_failed = 0
        """Lines that the disk refused."""
        self._folder = folder
        self._prefix = f"{number:06d}-{name}"
        self._num_parts = 0
        self._file: AppendFile | None = None
        self._parts: list[_Part] = []
        self._kept: dict[str, Kept] = {}
        self._waiting: list[tuple[str, bytes]] = []

    def opened(self, attempt: JournaledAttempt) -> None:
        """An attempt begins, or goes on: then all that it has done comes with it."""
        kept = Kept(
            attempt.group_id, attempt.split, attempt.newest_version, attempt.ended is not None
        )
        self._kept[attempt.trajectory_id] = kept
        self._waiting.append((attempt.trajectory_id, attempt_lines(attempt)))
        if attempt.turns:
            self.flush()

    def turn(
        self,
        trajectory_id: str,
        number: int,
        turn: SampledTurn,
        *,
        seconds: float,
        tool_seconds: float,
    ) -> None:
        if (kept := self._kept.get(trajectory_id)) is not None:
            kept.newest_version = max(kept.newest_version, *turn.policy_versions)
        line = turn_line(trajectory_id, number, turn, seconds=seconds, tool_seconds=tool_seconds)
        self._waiting.append((trajectory_id, line))
        self.flush()

    def answer(
        self,
        trajectory_id: str,
        number: int,
        answer: Answer,
        *,
        seconds: float,
        tool_seconds: float,
    ) -> None:
        line = answer_line(
            trajectory_id, number, answer, seconds=seconds, tool_seconds=tool_seconds
        )
        self._waiting.append((trajectory_id, line))

    def end(self, trajectory: Trajectory) -> None:
        """An attempt that has no opening in this journal ended before its first turn could begin."""
        kept = self._kept.get(trajectory.trajectory_id)
        if kept is None:
            return
        kept.is_ended = True
        tokens = token_columns(trajectory)
        kept.newest_version = int(tokens["policy_versions"].max(initial=-1))
        self._waiting.append((trajectory.trajectory_id, end_line(trajectory, tokens)))
        self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        try:
            part = self._current()
            assert self._file is not None
            self._file.append(b"".join(line for _, line in waiting))
            part.attempts.update(name for name, _ in waiting if name in self._kept)
        except OSError as error:
            if not self.num_failed:
                log.warning("the journal could not be written", error=repr(error))
            self.num_failed += len(waiting)

    def dismiss(self, trajectory_id: str) -> None:
        """An attempt is not wanted any more, whatever it came to."""
        self._kept.pop(trajectory_id, None)
        for part in self._parts:
            part.attempts.discard(trajectory_id)

    def forget(self, is_spent: Callable[[Kept], bool]) -> None:
        """Delete the parts in which nothing is wanted any more; what follows goes into a new one."""
        self.flush()
        self._close_part()
        spent = {name for name, kept in self._kept.items() if is_spent(kept)}
        for name in spent:
            del self._kept[name]
        still_wanted = []
        for part in self._parts:
            part.attempts -= spent
            if part.attempts:
                still_wanted.append(part)
            else:
                with suppress(OSError):
                    part.path.unlink()
        self._parts = still_wanted

    def sync(self) -> None:
        """Make what was written survive a crash of the machine."""
        self.flush()
        for part in self._parts:
            with suppress(OSError), part.path.open("rb") as file:
                os.fsync(file.fileno())

    def close(self) -> None:
        self.flush()
        self._close_part()

    def _current(self) -> _Part:
        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            path = self._folder / f"{self._prefix}.{self._num_parts:06d}.jsonl"
            self._file = AppendFile(path)
            self._num_parts += 1
            self._parts.append(_Part(path))
        return self._parts[-1]

    def _close_part(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
