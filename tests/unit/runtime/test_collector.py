import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from agentrl.config.sections import OutcomesSection
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.groups import GroupBook
from agentrl.runtime.collector import Collector
from agentrl.runtime.failures import FailingEnv, message_of
from agentrl.runtime.reports import refuse_failing_env, since_batch
from agentrl.runtime.tasks import TaskSource
from agentrl.types import Entry, Group, Outcome, Task, Trajectory
from scheduler.events import Event, GroupAccepted, GroupRejected


class Desk:
    """A collector with its two neighbours: what it submitted and what it told."""

    def __init__(self, group_size: int = 2, min_group: int = 2) -> None:
        self.out: list[Attempt] = []
        self.told: list[Event] = []
        self.undecided: list[Group] = []
        self.collector = Collector(
            source=TaskSource(lambda: [Task(f"t{i}") for i in range(9)], seed=0, split="train"),
            new_book=lambda: GroupBook(action=OutcomesSection().action, max_retries=1),
            group_size=group_size,
            min_group=min_group,
            refuse=lambda batch: refuse_failing_env(batch, max_error_fraction=0.5, min_attempts=4),
            submit=self.out.append,
            decide=self.undecided.append,
            tell=self.told.append,
        )

    def admit(self, num_groups: int) -> None:
        self.collector.admit(num_groups)

    def end(
        self, attempt: Attempt, outcome: Outcome = Outcome.FINISHED, entries: tuple[Entry, ...] = ()
    ) -> None:
        self.out.remove(attempt)
        self.collector.on_returned(
            Trajectory(
                trajectory_id=attempt.trajectory_id,
                task_id=attempt.task.id,
                group_id=attempt.group_id,
                sibling=attempt.sibling,
                attempt=attempt.attempt,
                split=attempt.split,
                outcome=outcome,
                error=None if outcome is Outcome.FINISHED else f"{outcome}: the wild one",
                reward=1.0 if outcome is Outcome.FINISHED else None,
                entries=entries,
            )
        )


async def test_complete_groups_come_in_the_order_of_completion_and_are_accepted() -> None:
    desk = Desk()
    desk.admit(2)
    first, second = desk.out[:2], desk.out[2:]
    for attempt in [*second, *first]:
        desk.end(attempt)
    assert [type(e) for e in desk.told] == [GroupAccepted, GroupAccepted]
    assert desk.collector.untrained == [0, 1]
    batch = await desk.collector.batch(1)
    assert [g.group_id for g in batch.groups] == ["g000001"]
    assert batch.outcomes == {"finished": 4}
    assert desk.collector.untrained == [0]


async def test_a_group_that_lost_too_many_is_rejected_and_its_members_are_shown() -> None:
    desk = Desk()
    desk.admit(1)
    good, bad = desk.out
    desk.end(bad, Outcome.INFRA_ERROR)
    (retry,) = [a for a in desk.out if a.attempt == 1]
    desk.end(retry, Outcome.INFRA_ERROR)
    desk.end(good)
    assert [type(e) for e in desk.told] == [GroupRejected]
    assert desk.collector.untrained == []
    desk.admit(1)
    for attempt in list(desk.out):
        desk.end(attempt)
    batch = await desk.collector.batch(1)
    assert batch.outcomes == {"infra_error": 2, "finished": 3}
    assert sorted(t.trajectory_id for t in batch.dropped) == sorted(
        [bad.trajectory_id, retry.trajectory_id, good.trajectory_id]
    )


async def test_a_cancelled_wait_leaves_its_groups_to_be_done_again() -> None:
    desk = Desk()
    desk.admit(2)
    for attempt in desk.out[:2]:
        desk.end(attempt)
    waiting = asyncio.create_task(desk.collector.batch(2))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert desk.collector.untrained == [0, 1]


async def test_evaluation_is_apart_from_training() -> None:
    desk = Desk()
    evaluating = asyncio.create_task(desk.collector.evaluate("e0", [Task("a"), Task("b")]))
    await asyncio.sleep(0)
    for attempt in list(desk.out):
        assert attempt.split == "eval"
        desk.end(attempt)
    groups = await evaluating
    assert {g.task_id for g in groups} == {"a", "b"}
    assert desk.told == []
    assert desk.collector.cursor == 0


ENTRY = (Entry(name="better", weight=0.5, question="?", text="x"),)


async def test_a_group_that_is_compared_goes_on_when_that_is_done() -> None:
    desk = Desk(group_size=3)
    desk.admit(1)
    for attempt in list(desk.out):
        desk.end(attempt, entries=ENTRY)
    assert desk.told == []
    (group,) = desk.undecided
    first, *others = group.trajectories
    lost = replace(first, reward=None, outcome=Outcome.UNSCORED)
    decided = tuple(replace(t, entries=()) for t in (lost, *others))
    desk.collector.on_decided(replace(group, trajectories=decided))
    assert [type(e) for e in desk.told] == [GroupAccepted]
    batch = await desk.collector.batch(1)
    assert [t.trajectory_id for t in batch.groups[0].trajectories] == [
        t.trajectory_id for t in others
    ]
    assert [t.trajectory_id for t in batch.dropped] == [first.trajectory_id]
    assert batch.outcomes == {"finished": 2, "unscored": 1}


async def test_a_group_whose_comparison_failed_is_rejected() -> None:
    desk = Desk()
    desk.admit(1)
    for attempt in list(desk.out):
        desk.end(attempt, entries=ENTRY)
    (group,) = desk.undecided
    lost = tuple(
        replace(t, reward=None, outcome=Outcome.INFRA_ERROR, entries=()) for t in group.trajectories
    )
    desk.collector.on_decided(replace(group, trajectories=lost))
    assert [type(e) for e in desk.told] == [GroupRejected]
    assert desk.collector.untrained == []


@pytest.mark.parametrize("outcome", [Outcome.ENV_ERROR, Outcome.UNSCORED])
async def test_an_environment_that_fails_too_often_ends_the_wait_for_a_batch(
    outcome: Outcome,
) -> None:
    desk = Desk()
    desk.admit(2)
    waiting = asyncio.create_task(desk.collector.batch(1))
    while desk.out:
        desk.end(desk.out[0], outcome)
    with pytest.raises(FailingEnv, match=rf"\(\d {outcome}\).*\n{outcome}: the wild one"):
        await asyncio.wait_for(waiting, 30)


async def test_an_environment_that_fails_too_often_ends_a_run_whose_groups_go_on() -> None:
    desk = Desk(group_size=2, min_group=1)
    desk.admit(2)
    while desk.out:
        is_good = desk.out[0].sibling == 0
        desk.end(desk.out[0], Outcome.FINISHED if is_good else Outcome.ENV_ERROR)
    assert [type(e) for e in desk.told] == [GroupAccepted, GroupAccepted]
    with pytest.raises(FailingEnv, match=r"of 6 attempts .*\(4 env_error\).*\nenv_error: the wild"):
        await desk.collector.batch(2)


async def test_what_starves_a_batch_is_told_once_and_counted() -> None:
    desk = Desk()
    assert since_batch(desk.collector.since_batch) == []
    desk.admit(2)
    with capture_logs() as logged:
        while desk.out:
            desk.end(desk.out[0], Outcome.INFRA_ERROR)
    assert [type(e) for e in desk.told] == [GroupRejected, GroupRejected]
    (warning,) = logged
    assert warning["error"] == "infra_error: the wild one"
    assert since_batch(desk.collector.since_batch) == [
        "attempts that ended since the last batch: 8 infra_error; "
        "the newest error: infra_error: the wild one"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("its machine was taken away", "its machine was taken away"),
        ('Traceback:\n  File "x"\n    y()\n    ^^^\nBoxLost: no\n  docker\n', "BoxLost: no"),
        ("", ""),
    ],
)
def test_the_message_of_an_error_is_what_follows_its_traceback(text: str, message: str) -> None:
    assert message_of(text) == message
