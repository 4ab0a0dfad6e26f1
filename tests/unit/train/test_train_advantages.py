"""Advantages against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentrl.config.sections import DrGrpoAdvantage, GrpoAdvantage, RlooAdvantage
from agentrl.train.advantages import group_advantages, has_signal, make_advantage

REWARDS = np.array([1.0, 0.0, 0.0, 1.0, 0.0])  # mean 0.4, squared deviations sum to 1.2


def test_grpo_divides_by_the_sample_deviation_and_epsilon() -> None:
    got = make_advantage(GrpoAdvantage(type="grpo", epsilon=0.1))(REWARDS)
    scale = math.sqrt(1.2 / 4) + 0.1
    np.testing.assert_allclose(got, np.array([0.6, -0.4, -0.4, 0.6, -0.4]) / scale, rtol=1e-14)


def test_drgrpo_only_centres() -> None:
    got = make_advantage(DrGrpoAdvantage(type="drgrpo"))(REWARDS)
    np.testing.assert_allclose(got, [0.6, -0.4, -0.4, 0.6, -0.4], rtol=1e-14)


def test_rloo_compares_with_the_others() -> None:
    got = make_advantage(RlooAdvantage(type="rloo"))(REWARDS)
    # A success is compared with one success in four others, a failure with two.
    np.testing.assert_allclose(got, [0.75, -0.5, -0.5, 0.75, -0.5], rtol=1e-14)


@pytest.mark.parametrize("base", [0.0, 1.0, 1e6])
def test_close_rewards_give_the_same_advantages_wherever_they_lie(base: float) -> None:
    grpo = make_advantage(GrpoAdvantage(type="grpo", epsilon=1e-4))
    got = group_advantages(grpo, np.array([base, base + 2.0**-17]))
    half = 2.0**-18
    expected = half / (half * math.sqrt(2) + 1e-4)
    np.testing.assert_allclose(got, [-expected, expected], rtol=1e-12)


@pytest.mark.parametrize("rewards", [[0.7], [0.1] * 8, [1.0, 1.0]])
def test_equal_rewards_have_no_signal_and_zero_advantages(rewards: list[float]) -> None:
    array = np.array(rewards)
    assert not has_signal(array)
    for section in (GrpoAdvantage(type="grpo"), RlooAdvantage(type="rloo")):
        got = group_advantages(make_advantage(section), array)
        np.testing.assert_array_equal(got, np.zeros(len(rewards)))


def test_a_reward_that_is_not_finite_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="unscored"):
        group_advantages(make_advantage(DrGrpoAdvantage(type="drgrpo")), np.array([1.0, np.nan]))
