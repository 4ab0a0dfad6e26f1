"""The driver's side of the journal: what lost processes left behind, and what may be forgotten.

When a run goes on from a checkpoint, or a runner is lost, every attempt that the journal knows is
looked at once. One that has ended is taken as it is. One that was under way goes on where it was,
where the environment says that its calls may run again. The others start anew, and are counted with
the reason.

Invariants
- What lost weights have sampled is never used: after the checkpoint the same version numbers mean
  other weights. Such attempts leave the disk before a new step is made.
- An attempt is handed out once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import NamedTuple

import structlog

from agentrl.record.journal import (
    JournaledAttempt,
    ended_attempt,
    journal_parts,
    read_journal,
)
from agentrl.record.journal_writer import JournalWriter
from agentrl.rollout.attempt import Attempt
from agentrl.runtime.progress import RunProgress, Standing, is_spent
from agentrl.types import Json, Outcome, StopReason, Trajectory

log = structlog.get_logger(__name__)

MAX_CONTINUED = 3
"""An attempt that was there when so many processes were lost starts anew: it may be the reason."""


class Fate(StrEnum):
    """What becomes of an attempt that a lost process left behind; all but two start anew."""

    CONTINUED = "continued"
    TAKEN = "taken from the record"
    LOST_WEIGHTS = "from lost weights"
    FAILED = "had failed"
    """And may do better: whoever goes on with a run may have mended its environment."""
    NO_TURN = "no turn yet"
    NOT_REPLAYABLE = "not replayable"
    CONTINUED_OFTEN = "continued too often"
    OTHERWISE = "answered otherwise"
    """Than before, when its calls ran again."""
    OTHER_TASK = "other task"
    """Its place in the order of tasks is taken by another one: the settings have changed."""
    LOST_AGAIN = "lost again"


_USABLE = (Fate.CONTINUED, Fate.TAKEN)


@dataclass(slots=True)
class Tally:
    """What became of the attempts that lost processes left behind."""

    fates: Counter[Fate] = field(default_factory=Counter)

    @property
    def restarted(self) -> dict[str, int]:
        return {fate.value: n for fate, n in sorted(self.fates.items()) if fate not in _USABLE}

    def to_json(self) -> dict[str, Json]:
        return {
            "continued": self.fates[Fate.CONTINUED],
            "taken_from_record": self.fates[Fate.TAKEN],
            "restarted": self.restarted,
        }

    def __str__(self) -> str:
        reasons = ", ".join(f"{n} {reason}" for reason, n in self.restarted.items())
        return (
            f"continued {self.fates[Fate.CONTINUED]}, "
            f"restarted {sum(self.restarted.values())}{f' ({reasons})' if reasons else ''}, "
            f"taken from the record {self.fates[Fate.TAKEN]}"
        )


class Recovered(NamedTuple):
    """The attempts of a lost runner."""

    ended: list[Trajectory]
    """Those that had ended, and those that cannot go on: an `infra_error` each."""
    under_way: list[tuple[Attempt, JournaledAttempt]]


class Journals:
    """`take_over` once, before anything is played; `stepped` and `checkpointed` by the main loop."""

    def __init__(
        self,
        folder: Path,
        *,
        checkpoint: Standing,
        is_replayable: bool,
        settle: Callable[[Standing, Standing], None],
        report: Callable[[Tally], None],
    ) -> None:
        """`settle(checkpoint, now)` tells the runners what training is done with; `report` is told
        what became of leftovers when that has changed and none of them is under way any more."""
        self._folder = folder
        self._checkpoint = self._now = checkpoint
        self._is_replayable = is_replayable
        self._settle = settle
        self._report = report
        parts = journal_parts(folder)
        self._numbers = count(max((_number(part) for part in parts), default=-1) + 1)
        self._own = JournalWriter(folder, number=next(self._numbers), name="driver")
        """Holds what the journals of lost processes held and is still wanted."""
        self._runner_numbers: dict[str, int] = {}
        self._left: dict[str, JournaledAttempt] = {}
        """Usable, and not asked for yet."""
        self._under_way: dict[str, JournaledAttempt] = {}
        self._reported = 0
        self.tally = Tally()

    def writer_for(self, runner: str) -> JournalWriter:
        """For a runner that starts, and nobody else."""
        number = self._runner_numbers[runner] = next(self._numbers)
        return JournalWriter(self._folder, number=number, name=runner)

    # ------------------------------------------------------------------------------ leftovers

    def take_over(self) -> Tally:
        """Sort out what earlier launches left; says what is about to become of it."""
        parts = journal_parts(self._folder)
        known = read_journal(parts)
        planned = Tally()
        for attempt in known.values():
            if attempt.split != "train" or self._checkpoint.is_done_with(attempt.group_id):
                continue
            fate = self._fate(attempt, known)
            planned.fates[fate] += 1
            if fate in _USABLE:
                self._left[attempt.trajectory_id] = attempt
            else:
                self.tally.fates[fate] += 1
        self._replace(parts, self._left.values())
        return planned

    def take(self, attempt: Attempt) -> JournaledAttempt | None:
        """What is known of an attempt that is about to start: its end, or its turns so far."""
        known = self._left.pop(attempt.trajectory_id, None)
        if known is None:
            return None
        if known.task_id != attempt.task.id:
            self.tally.fates[Fate.OTHER_TASK] += 1
            self._own.dismiss(attempt.trajectory_id)
            return None
        if known.ended is not None:
            self.tally.fates[Fate.TAKEN] += 1
        else:
            self._under_way[attempt.trajectory_id] = known
        return known

    async def recover(self, runner: str, lost: Sequence[Attempt], error: str) -> Recovered:
        """What becomes of the attempts that a lost runner had been given."""
        number = self._runner_numbers[runner]
        parts = [part for part in journal_parts(self._folder) if _number(part) == number]
        known = await asyncio.to_thread(read_journal, parts)
        recovered = Recovered([], [])
        for attempt in lost:
            name = attempt.trajectory_id
            left = known.get(name) or self._not_begun(name)
            if left is not None and left.ended is not None:
                recovered.ended.append(left.ended)
                continue
            fate = self._fate_of_open(left)
            if left is not None and fate is Fate.CONTINUED:
                recovered.under_way.append((attempt, left))
                self._under_way[name] = known[name] = left
                continue
            self.tally.fates[fate] += 1
            self._under_way.pop(name, None)
            ended = lost_trajectory(attempt, error)
            recovered.ended.append(ended)
            known[name] = ended_attempt(ended)
        self._replace(parts, known.values())
        log.warning(
            "a runner was lost",
            runner=runner,
            attempts_that_go_on=len(recovered.under_way),
            attempts_that_ended=len(recovered.ended),
        )
        return recovered

    def returned(self, trajectory: Trajectory) -> None:
        """An attempt has ended; the runner that played it has it in its own journal."""
        if self._under_way.pop(trajectory.trajectory_id, None) is None:
            return
        self._own.dismiss(trajectory.trajectory_id)
        if trajectory.diverged is not None:
            log.warning(
                "an attempt could not go on: its calls were answered otherwise than before",
                trajectory=trajectory.trajectory_id,
                why=trajectory.diverged,
            )
            self.tally.fates[Fate.OTHERWISE] += 1
        else:
            self.tally.fates[Fate.CONTINUED if trajectory.continued else Fate.LOST_AGAIN] += 1

    def _not_begun(self, name: str) -> JournaledAttempt | None:
        """What a lost runner was to go on from, and had not come to."""
        left = self._under_way.get(name)
        return None if left is None else replace(left, continued=left.continued + 1)

    def _fate(self, attempt: JournaledAttempt, known: Mapping[str, JournaledAttempt]) -> Fate:
        if attempt.newest_version > self._checkpoint.step:
            return Fate.LOST_WEIGHTS
        if attempt.ended is not None:
            is_used = attempt.ended.outcome in (Outcome.FINISHED, Outcome.TRUNCATED) or (
                attempt.ended.outcome is Outcome.INFRA_ERROR and _was_retried(attempt, known)
            )
            return Fate.TAKEN if is_used else Fate.FAILED
        return self._fate_of_open(attempt)

    def _fate_of_open(self, attempt: JournaledAttempt | None) -> Fate:
        if attempt is None or not attempt.turns:
            return Fate.NO_TURN
        if not self._is_replayable:
            return Fate.NOT_REPLAYABLE
        return Fate.CONTINUED if attempt.continued < MAX_CONTINUED else Fate.CONTINUED_OFTEN

    def _replace(self, parts: Iterable[Path], wanted: Iterable[JournaledAttempt]) -> None:
        """Parts of lost processes go; what is wanted of them is in the driver's own part first."""
        for attempt in wanted:
            self._own.opened(attempt)
        self._own.forget(lambda kept: is_spent(kept, checkpoint=self._checkpoint, now=self._now))
        self._own.sync()
        for part in parts:
            with suppress(OSError):
                part.unlink()

    # ------------------------------------------------------------------------------ forgetting

    def stepped(self, progress: RunProgress) -> None:
        """A batch was trained on."""
        self._now = Standing.of(progress)
        self._forget()
        num_settled = sum(self.tally.fates.values())
        if not self._under_way and num_settled != self._reported:
            self._reported = num_settled
            self._report(self.tally)

    def checkpointed(self, progress: RunProgress) -> None:
        """The run could go on from here."""
        self._checkpoint = self._now = Standing.of(progress)
        self._forget()

    def close(self) -> None:
        self._own.close()

    def _forget(self) -> None:
        self._own.forget(lambda kept: is_spent(kept, checkpoint=self._checkpoint, now=self._now))
        done = [n for n, left in self._left.items() if self._now.is_done_with(left.group_id)]
        for name in done:
            del self._left[name]
        self._settle(self._checkpoint, self._now)


def lost_trajectory(attempt: Attempt, error: str) -> Trajectory:
    """What stands in the record for an attempt whose runner is gone."""
    return Trajectory(
        trajectory_id=attempt.trajectory_id,
        task_id=attempt.task.id,
        group_id=attempt.group_id,
        sibling=attempt.sibling,
        attempt=attempt.attempt,
        split=attempt.split,
        stop_reason=StopReason.INFRA_ERROR,
        outcome=Outcome.INFRA_ERROR,
        error=error,
    )


def _was_retried(attempt: JournaledAttempt, known: Mapping[str, JournaledAttempt]) -> bool:
    side = (attempt.group_id, attempt.sibling)
    return any(
        (other.group_id, other.sibling) == side and other.attempt > attempt.attempt
        for other in known.values()
    )


def _number(part: Path) -> int:
    return int(part.name.partition("-")[0])
