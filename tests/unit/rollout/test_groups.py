from dataclasses import replace

import pytest

from agentrl.config.sections import OutcomesSection
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.groups import GroupBook, Verdict
from agentrl.types import Outcome, Task, Trajectory

TASK = Task("t")


def book(max_retries: int = 1) -> GroupBook:
    return GroupBook(action=OutcomesSection().action, max_retries=max_retries)


def ended(attempt: Attempt, outcome: Outcome = Outcome.FINISHED) -> Trajectory:
    return Trajectory(
        trajectory_id=attempt.trajectory_id,
        task_id=attempt.task.id,
        group_id=attempt.group_id,
        sibling=attempt.sibling,
        attempt=attempt.attempt,
        outcome=outcome,
        reward=1.0,
    )


def test_a_group_closes_when_its_last_member_is_back_in_sibling_order() -> None:
    groups = book()
    first, second, third = groups.open("g", TASK, 3, split="train")
    assert groups.returned(ended(third)).group is None
    assert groups.returned(ended(first)).group is None
    group = groups.returned(ended(second)).group
    assert group is not None
    assert [t.sibling for t in group.trajectories] == [0, 1, 2]


def test_all_members_and_their_retries_are_of_the_groups_epoch() -> None:
    groups = book()
    first, second = groups.open("g", TASK, 2, split="train", epoch=3)
    retry = groups.returned(ended(first, Outcome.INFRA_ERROR)).retry
    assert retry is not None
    assert [attempt.epoch for attempt in (first, second, retry)] == [3, 3, 3]


def test_an_infra_error_is_tried_again_and_never_kept() -> None:
    groups = book()
    (attempt,) = groups.open("g", TASK, 1, split="train")
    lost = groups.returned(ended(attempt, Outcome.INFRA_ERROR))
    assert lost.verdict is Verdict.RETRIED
    assert lost.retry is not None
    assert lost.retry.attempt == 1
    assert lost.retry.trajectory_id != attempt.trajectory_id
    again = groups.returned(ended(lost.retry, Outcome.INFRA_ERROR))
    assert again.verdict is Verdict.DROPPED
    assert again.group is not None
    assert again.group.trajectories == ()
    assert again.group.size == 1


def test_a_late_result_of_an_old_attempt_is_void() -> None:
    groups = book()
    attempt, _ = groups.open("g", TASK, 2, split="train")
    retry = groups.returned(ended(attempt, Outcome.ENV_ERROR)).retry
    assert retry is not None
    assert groups.returned(ended(attempt)).verdict is Verdict.LATE
    assert groups.returned(ended(retry)).verdict is Verdict.KEPT
    assert groups.returned(ended(retry)).verdict is Verdict.LATE
    assert groups.returned(replace(ended(retry), group_id="other")).verdict is Verdict.LATE


@pytest.mark.parametrize("outcome", [Outcome.UNSCORED, Outcome.CANCELLED])
def test_what_cannot_be_trained_on_is_dropped_and_leaves_a_smaller_group(outcome: Outcome) -> None:
    groups = book()
    first, second = groups.open("g", TASK, 2, split="train")
    assert groups.returned(ended(first, outcome)).verdict is Verdict.DROPPED
    group = groups.returned(ended(second)).group
    assert group is not None
    assert (group.size, len(group.trajectories)) == (2, 1)
