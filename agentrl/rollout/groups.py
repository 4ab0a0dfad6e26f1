"""Groups while they are being attempted: who is still out, what came back, what is tried again.

Owns the rule that a group is judged once, when every member has either come back for good or been
lost for good, and that a result of an old attempt is void. It knows nothing of where attempts run.
The meaning of each outcome is a table (`OutcomesSection`), so a lost box never becomes reward 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from agentrl.rollout.attempt import Attempt
from agentrl.types import Group, Outcome, OutcomeAction, Task, Trajectory


class Verdict(StrEnum):
    """What became of a returned trajectory."""

    KEPT = "kept"
    DROPPED = "dropped"
    RETRIED = "retried"
    LATE = "late"
    """Of an attempt that was already given up, or of a group that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The consequence of one returned trajectory."""

    verdict: Verdict
    retry: Attempt | None = None
    """The attempt to start in its place."""
    group: Group | None = None
    """Set when this was the last member out. Members that were dropped are missing from it."""


@dataclass(slots=True)
class _OpenGroup:
    group_id: str
    task: Task
    size: int
    out: dict[int, Attempt]
    """Sibling index to the attempt that now stands for it."""
    kept: list[Trajectory] = field(default_factory=list)


class GroupBook:
    """All groups that have members out."""

    def __init__(self, *, action: Callable[[Outcome], OutcomeAction], max_retries: int) -> None:
        self._action = action
        self._max_retries = max_retries
        self._open: dict[str, _OpenGroup] = {}

    def open(
        self, group_id: str, task: Task, size: int, *, split: str, epoch: int = 0
    ) -> list[Attempt]:
        """Start a group; returns its first attempts, one a sibling."""
        assert group_id not in self._open
        attempts = [
            Attempt(
                trajectory_id=f"{group_id}-{sibling}",
                task=task,
                group_id=group_id,
                sibling=sibling,
                attempt=0,
                split=split,
                epoch=epoch,
            )
            for sibling in range(size)
        ]
        self._open[group_id] = _OpenGroup(
            group_id, task, size, out={attempt.sibling: attempt for attempt in attempts}
        )
        return attempts

    def returned(self, trajectory: Trajectory) -> Returned:
        """Take one finished trajectory; tells what to do next."""
        group = self._open.get(trajectory.group_id)
        current = group.out.get(trajectory.sibling) if group else None
        if group is None or current is None or current.attempt != trajectory.attempt:
            return Returned(verdict=Verdict.LATE)
        action = self._action(trajectory.outcome)
        if action == "retry" and trajectory.attempt < self._max_retries:
            group.out[trajectory.sibling] = retry = current.again()
            return Returned(verdict=Verdict.RETRIED, retry=retry)
        del group.out[trajectory.sibling]
        is_kept = action in ("train", "zero")
        if is_kept:
            group.kept.append(trajectory)
        return Returned(
            verdict=Verdict.KEPT if is_kept else Verdict.DROPPED,
            group=None if group.out else self._close(group),
        )

    def _close(self, group: _OpenGroup) -> Group:
        del self._open[group.group_id]
        return Group(
            group_id=group.group_id,
            task_id=group.task.id,
            size=group.size,
            trajectories=tuple(sorted(group.kept, key=lambda t: t.sibling)),
        )
