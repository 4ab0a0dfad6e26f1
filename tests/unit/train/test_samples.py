"""From a finished group to training rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agentrl.config.sections import DrGrpoAdvantage, OutcomesSection
from agentrl.train.samples import GroupCutter, GroupFate
from agentrl.types import Group, Origin, Outcome, Row, Segment, Trajectory


def segment(origin: Origin, *ids: int, turn: int = 0, version: int = 0) -> Segment:
    columns = {}
    if origin is Origin.SAMPLED:
        columns = {
            "logprobs": np.array([-i / 10 for i in ids], dtype=np.float32),
            "policy_versions": np.full(len(ids), version, dtype=np.int32),
        }
    return Segment(origin=origin, turn=turn, ids=np.array(ids, dtype=np.int32), **columns)


TWO_TURNS: Row = (
    segment(Origin.PROMPT, 1, 2),
    segment(Origin.SAMPLED, 3, 4, version=7),
    segment(Origin.SCAFFOLD, 5),
    segment(Origin.TOOL, 6, 7, turn=1),
    segment(Origin.SAMPLED, 8, turn=1, version=8),
    segment(Origin.REPLY, 9, turn=1),
)


def trajectory(sibling: int, reward: float | None, **changes: object) -> Trajectory:
    made = Trajectory(
        trajectory_id=f"g-{sibling}",
        task_id="task",
        group_id="g",
        sibling=sibling,
        reward=reward,
        rows=(TWO_TURNS,),
    )
    return replace(made, **changes)


def group(*trajectories: Trajectory) -> Group:
    return Group(group_id="g", task_id="task", size=4, trajectories=trajectories)


@pytest.fixture
def cutter() -> GroupCutter:
    return make_cutter()


def make_cutter(**outcomes: str) -> GroupCutter:
    return GroupCutter(
        DrGrpoAdvantage(type="drgrpo"),
        action=OutcomesSection.model_validate(outcomes).action,
        min_group=2,
    )


def test_the_mask_is_true_exactly_on_sampled_tokens_of_every_turn(cutter: GroupCutter) -> None:
    cut = cutter.cut(group(trajectory(0, 1.0), trajectory(1, 0.0)))
    assert cut.fate is GroupFate.TRAINED
    sample = cut.samples[0]
    np.testing.assert_array_equal(sample.ids, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    mask = [False, False, True, True, False, False, False, True, False]
    np.testing.assert_array_equal(sample.loss_mask, mask)
    np.testing.assert_array_equal(
        sample.rollout_logprobs, np.array([0, 0, -0.3, -0.4, 0, 0, 0, -0.8, 0], dtype=np.float32)
    )
    np.testing.assert_array_equal(sample.policy_versions, [-1, -1, 7, 7, -1, -1, -1, 8, -1])
    np.testing.assert_array_equal(sample.advantages, [0, 0, 0.5, 0.5, 0, 0, 0, 0.5, 0])
    assert sample.advantages.dtype == np.float32


def test_every_row_of_a_forked_trajectory_is_a_sample_of_one_attempt(cutter: GroupCutter) -> None:
    forked = trajectory(0, 1.0, rows=(TWO_TURNS, TWO_TURNS))
    cut = cutter.cut(group(forked, trajectory(1, 0.0)))
    assert [s.trajectory_id for s in cut.samples] == ["g-0", "g-0", "g-1"]
    assert [s.advantages.max() for s in cut.samples[:2]] == [0.5, 0.5]


def test_what_does_not_count_takes_no_part_in_the_baseline(cutter: GroupCutter) -> None:
    lost = trajectory(2, None, outcome=Outcome.INFRA_ERROR)
    cut = cutter.cut(group(trajectory(0, 1.0), trajectory(1, 0.0), lost))
    assert {s.trajectory_id for s in cut.samples} == {"g-0", "g-1"}
    assert cut.samples[0].advantages.max() == 0.5


def test_an_outcome_mapped_to_zero_counts_as_reward_zero() -> None:
    cutter = make_cutter(truncated="zero")
    cut_off = trajectory(1, 1.0, outcome=Outcome.TRUNCATED)
    cut = cutter.cut(group(trajectory(0, 1.0), cut_off))
    assert [s.advantages[2] for s in cut.samples] == [0.5, -0.5]


def test_a_group_below_the_least_size_is_dropped_and_says_so(cutter: GroupCutter) -> None:
    lost = trajectory(1, None, outcome=Outcome.ENV_ERROR)
    cut = cutter.cut(group(trajectory(0, 1.0), lost))
    assert (cut.fate, cut.samples) == (GroupFate.TOO_SMALL, ())


def test_a_group_that_lost_every_member_is_too_small(cutter: GroupCutter) -> None:
    assert cutter.cut(group()).fate is GroupFate.TOO_SMALL


def test_equal_rewards_are_dropped_or_kept_as_the_section_says(cutter: GroupCutter) -> None:
    equal = group(trajectory(0, 1.0), trajectory(1, 1.0))
    assert cutter.cut(equal).fate is GroupFate.ZERO_VARIANCE
    keeping = GroupCutter(
        DrGrpoAdvantage(type="drgrpo", zero_variance="keep"),
        action=OutcomesSection().action,
        min_group=2,
    )
    cut = keeping.cut(equal)
    assert cut.fate is GroupFate.TRAINED
    assert not any(s.advantages.any() for s in cut.samples)


def test_an_attempt_without_sampled_tokens_counts_but_gives_no_sample(cutter: GroupCutter) -> None:
    silent = trajectory(1, 0.0, rows=((segment(Origin.PROMPT, 1, 2),),))
    cut = cutter.cut(group(trajectory(0, 1.0), silent))
    assert [s.trajectory_id for s in cut.samples] == ["g-0"]
    assert cut.samples[0].advantages.max() == 0.5
    speechless = replace(silent, sibling=0, trajectory_id="g-0", reward=1.0)
    assert cutter.cut(group(speechless, silent)).fate is GroupFate.NOTHING_SAMPLED


def test_a_single_sampled_stop_token_is_trained_on(cutter: GroupCutter) -> None:
    row = (segment(Origin.PROMPT, 1), segment(Origin.SAMPLED, 2))
    cut = cutter.cut(group(trajectory(0, 1.0), trajectory(1, 0.0, rows=(row,))))
    np.testing.assert_array_equal(cut.samples[1].advantages, [0, -0.5])
