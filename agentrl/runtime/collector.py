"""Keeps admitted groups under way and hands complete ones to training, oldest first.

The coordinator says how many groups may start, the task source says which tasks they are, runners
play the attempts, and the group book says what became of each. A group that lost too many members
is reported as rejected, and the coordinator admits another in its place.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from agentrl.rollout.attempt import Attempt
from agentrl.rollout.contests import is_open
from agentrl.rollout.groups import GroupBook, Verdict
from agentrl.runtime.failures import RunFailed, message_of
from agentrl.runtime.tasks import TaskSource, group_name
from agentrl.types import Group, Task, Trajectory
from scheduler.events import Event, GroupAccepted, GroupRejected

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Batch:
    """What one optimizer step gets, and what was lost on the way to it."""

    groups: list[Group] = field(default_factory=list)
    """Fresh ones."""
    replayed: list[Group] = field(default_factory=list)
    """Of earlier steps."""
    dropped: list[Trajectory] = field(default_factory=list)
    """Ended attempts that no group of the batch holds: errors, retries, rejected groups."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Of every attempt that ended since the batch before."""

    @property
    def newest_error(self) -> str | None:
        """Of the dropped ones, without its traceback."""
        errors = (t.error for t in reversed(self.dropped) if t.error)
        return next(map(message_of, errors), None)


class Collector:
    """`admit` and `on_returned` are called by the links; `batch` and `evaluate` wait.

    `refuse` is asked about what has gathered since the last batch, whenever a group was lost and
    before a batch is handed over, and raises when the run should not go on so.
    """

    def __init__(
        self,
        *,
        source: TaskSource,
        new_book: Callable[[], GroupBook],
        group_size: int,
        min_group: int,
        refuse: Callable[[Batch], None],
        submit: Callable[[Attempt], None],
        decide: Callable[[Group], None],
        tell: Callable[[Event], None],
    ) -> None:
        self._source = source
        self._group_size = group_size
        self._min_group = min_group
        self._refuse = refuse
        self._submit = submit
        self._decide = decide
        self._tell = tell
        self._training = new_book()
        self._evaluation = new_book()
        self._complete: asyncio.Queue[Group | RunFailed] = asyncio.Queue()
        self._evaluated: asyncio.Queue[Group] = asyncio.Queue()
        self._since_batch = Batch()
        self._is_loss_known = False
        """A group that was lost since the last batch has been told of; others say the same."""
        self._contestants: dict[str, set[str]] = {}
        """Group id to the members that a judge is comparing: they count when that is done."""
        self._untrained: dict[str, int] = {}
        """Group id to task number, of every group that no batch has taken and that was not lost."""

    @property
    def cursor(self) -> int:
        return self._source.cursor

    @property
    def since_batch(self) -> Batch:
        """What has gathered for the next batch, without its groups."""
        return self._since_batch

    @property
    def untrained(self) -> list[int]:
        """Numbers of the tasks that were taken and whose groups were not handed over yet."""
        return sorted(self._untrained.values())

    def admit(self, num_groups: int) -> None:
        """Start the next groups."""
        for number, task, epoch in self._source.take(num_groups):
            group_id = group_name(number)
            self._untrained[group_id] = number
            for attempt in self._training.open(
                group_id, task, self._group_size, split="train", epoch=epoch
            ):
                self._submit(attempt)

    def on_returned(self, trajectory: Trajectory) -> None:
        is_training = trajectory.split == "train"
        book = self._training if is_training else self._evaluation
        returned = book.returned(trajectory)
        if is_training and not (returned.verdict is Verdict.KEPT and trajectory.entries):
            self._count(trajectory, returned.verdict)
        if returned.retry is not None:
            self._submit(returned.retry)
        if returned.group is not None:
            self._close(returned.group) if is_training else self._evaluated.put_nowait(
                returned.group
            )

    def on_decided(self, group: Group) -> None:
        """A judge has compared what could be compared; who has no reward now is dropped."""
        contestants = self._contestants.pop(group.group_id)
        kept = []
        for trajectory in group.trajectories:
            is_kept = trajectory.reward is not None
            if trajectory.trajectory_id in contestants:
                self._count(trajectory, Verdict.KEPT if is_kept else Verdict.DROPPED)
            if is_kept:
                kept.append(trajectory)
        self._accept(replace(group, trajectories=tuple(kept)))

    async def batch(self, num_groups: int) -> Batch:
        """The next `num_groups` complete groups. Raises `RunFailed` when the run should not go on."""
        groups: list[Group] = []
        while len(groups) < num_groups:
            complete = await self._complete.get()
            if isinstance(complete, RunFailed):
                raise complete
            groups.append(complete)
        self._refuse(self._since_batch)  # groups may be complete though most attempts fail
        batch, self._since_batch = self._since_batch, Batch()
        self._is_loss_known = False
        batch.groups = groups
        for group in groups:
            del self._untrained[group.group_id]
        return batch

    async def evaluate(self, name: str, tasks: Sequence[Task]) -> list[Group]:
        """One attempt at each task; a group without a trajectory was lost for good."""
        for number, task in enumerate(tasks):
            for attempt in self._evaluation.open(f"{name}-{number:05d}", task, 1, split="eval"):
                self._submit(attempt)
        return [await self._evaluated.get() for _ in tasks]

    def _count(self, trajectory: Trajectory, verdict: Verdict) -> None:
        is_late = verdict is Verdict.LATE
        self._since_batch.outcomes["late" if is_late else trajectory.outcome.value] += 1
        if verdict is not Verdict.KEPT:
            self._since_batch.dropped.append(trajectory)

    def _close(self, group: Group) -> None:
        if not is_open(group):
            return self._accept(group)
        self._contestants[group.group_id] = {
            trajectory.trajectory_id for trajectory in group.trajectories if trajectory.entries
        }
        return self._decide(group)

    def _accept(self, group: Group) -> None:
        if len(group.trajectories) >= self._min_group:
            self._tell(GroupAccepted(group_id=group.group_id))
            self._complete.put_nowait(group)
        else:
            self._warn_of_loss(group)
            self._since_batch.dropped += group.trajectories
            del self._untrained[group.group_id]
            self._tell(GroupRejected(group_id=group.group_id))
            try:
                self._refuse(self._since_batch)
            except RunFailed as failure:
                self._complete.put_nowait(failure)

    def _warn_of_loss(self, group: Group) -> None:
        if self._is_loss_known:
            return
        self._is_loss_known = True
        log.warning(
            "a group lost too many members; others start in its place",
            group=group.group_id,
            members=len(group.trajectories),
            wanted=self._min_group,
            error=self._since_batch.newest_error,
        )
