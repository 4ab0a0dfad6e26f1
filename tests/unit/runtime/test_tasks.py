from collections.abc import Iterator
from itertools import count, islice

import pytest

from agentrl.runtime.tasks import TaskSource
from agentrl.types import Task


def few() -> list[Task]:
    return [Task(f"t{i}") for i in range(5)]


def endless() -> Iterator[Task]:
    return (Task(f"t{i}") for i in count())


@pytest.mark.parametrize("tasks", [few, endless])
@pytest.mark.parametrize("cut", [0, 3, 5, 12])
def test_resuming_at_the_cursor_continues_the_same_sequence(tasks, cut) -> None:
    whole = TaskSource(tasks, seed=7, split="train").take(20)
    first = TaskSource(tasks, seed=7, split="train")
    head = first.take(cut)
    tail = TaskSource(tasks, seed=7, cursor=first.cursor, split="train").take(20 - cut)
    assert head + tail == whole


def test_tasks_that_never_ended_are_given_once_more_first() -> None:
    whole = TaskSource(few, seed=7, split="train").take(10)
    resumed = TaskSource(few, seed=7, split="train", cursor=6, pending=[2, 5])
    assert resumed.take(4) == [whole[2], whole[5], whole[6], whole[7]]
    assert resumed.cursor == 8


def test_a_small_set_is_shuffled_anew_each_epoch_and_none_is_missed() -> None:
    drawn = TaskSource(few, seed=0, split="train").take(15)
    assert [d.epoch for d in drawn] == [0] * 5 + [1] * 5 + [2] * 5
    taken = [d.task.id for d in drawn]
    epochs = [taken[0:5], taken[5:10], taken[10:15]]
    assert all(sorted(epoch) == ["t0", "t1", "t2", "t3", "t4"] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_a_stream_is_taken_in_its_own_order() -> None:
    drawn = TaskSource(endless, seed=3, split="train").take(4)
    assert [d.task for d in drawn] == list(islice(endless(), 4))
    assert [d.number for d in drawn] == [0, 1, 2, 3]


def test_no_tasks_and_repeated_ids_are_named() -> None:
    with pytest.raises(ValueError, match="no tasks in split 'eval'"):
        TaskSource(list, seed=0, split="eval").take(1)
    with pytest.raises(ValueError, match="'a' occurs twice"):
        TaskSource(lambda: [Task("a"), Task("a")], seed=0, split="train").take(1)
