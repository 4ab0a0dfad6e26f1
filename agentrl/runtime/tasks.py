"""The order in which tasks are attempted, and the cursor that a checkpoint keeps.

The order depends on the environment and the run's seed alone, never on how fast anything ran, so
50 + 50 steps draw the same tasks as 100. A small set of tasks is shuffled anew each epoch; a
stream (more than `SHUFFLE_LIMIT` tasks, or endless) is taken as it comes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count, islice
from typing import NamedTuple

from agentrl.types import Task

SHUFFLE_LIMIT = 10_000


def group_name(number: int) -> str:
    """Of the group that attempts the task of this number."""
    return f"g{number:06d}"


def group_number(name: str) -> int:
    return int(name.removeprefix("g"))


class Drawn(NamedTuple):
    number: int
    """In the whole sequence, over all epochs."""
    task: Task
    epoch: int
    """How often all tasks had been drawn before."""


class TaskSource:
    """Endless, seeded, resumable sequence of tasks."""

    def __init__(
        self,
        tasks: Callable[[], Iterable[Task]],
        *,
        seed: int,
        split: str,
        cursor: int = 0,
        pending: Collection[int] = (),
    ) -> None:
        """`cursor` tasks were taken before; those numbered in `pending` are given once more,
        first, because their attempts never came to an end."""
        assert all(index < cursor for index in pending)
        self._tasks = tasks
        self._seed = seed
        self._split = split
        self._sequence = (
            Drawn(number, task, epoch)
            for number, (epoch, task) in enumerate(self._endless())
            if number >= cursor or number in pending
        )
        self.cursor = cursor
        """Tasks taken so far, over all epochs."""

    def take(self, num_tasks: int) -> list[Drawn]:
        """The next tasks."""
        taken = list(islice(self._sequence, num_tasks))
        self.cursor = max([self.cursor, *(drawn.number + 1 for drawn in taken)])
        return taken

    def _endless(self) -> Iterator[tuple[int, Task]]:
        for epoch in count():
            head = list(islice(self._tasks(), SHUFFLE_LIMIT + 1))
            if not head:
                raise ValueError(
                    f"the environment has no tasks in split {self._split!r}; "
                    f"`tasks({self._split!r})` must yield at least one"
                )
            if len(head) > SHUFFLE_LIMIT:
                yield from ((epoch, task) for task in self._tasks())
            else:
                _refuse_repeated_ids(head, self._split)
                random.Random(f"{self._seed}/{epoch}").shuffle(head)
                yield from ((epoch, task) for task in head)


def _refuse_repeated_ids(tasks: list[Task], split: str) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise ValueError(
                f"task id {task.id!r} occurs twice in split {split!r}; ids must be unique, "
                "since groups, seeds and the record are keyed by them"
            )
        seen.add(task.id)
