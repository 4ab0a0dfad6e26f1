"""What holds of every algorithm and every group."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.sections import (
    AdvantageSection,
    DrGrpoAdvantage,
    GrpoAdvantage,
    RlooAdvantage,
)
from agentrl.train.advantages import group_advantages, has_signal, make_advantage

sections: st.SearchStrategy[AdvantageSection] = st.sampled_from(
    [
        GrpoAdvantage(type="grpo"),
        DrGrpoAdvantage(type="drgrpo"),
        RlooAdvantage(type="rloo"),
    ]
)
groups = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=16).map(np.array)


@given(sections, groups)
def test_a_group_sums_to_zero_and_keeps_the_order_of_its_rewards(
    section: AdvantageSection, rewards: np.ndarray
) -> None:
    got = group_advantages(make_advantage(section), rewards)
    assert got.shape == rewards.shape
    assert np.isfinite(got).all()
    assert abs(got.sum()) <= 1e-9 * max(1.0, np.abs(rewards).max())
    order = np.argsort(rewards, kind="stable")
    assert (np.diff(got[order]) >= 0).all()
    if not has_signal(rewards):
        assert not got.any()


@given(sections, groups, st.randoms(use_true_random=False))
def test_siblings_may_come_in_any_order(
    section: AdvantageSection, rewards: np.ndarray, random: object
) -> None:
    shuffled = np.random.default_rng(random.getrandbits(32)).permutation(len(rewards))  # type: ignore[attr-defined]
    advantage = make_advantage(section)
    got = group_advantages(advantage, rewards)[shuffled]
    tolerance = 1e-9 * max(1.0, np.abs(rewards).max())
    np.testing.assert_allclose(
        group_advantages(advantage, rewards[shuffled]), got, rtol=1e-9, atol=tolerance
    )


@given(groups, st.floats(1e-4, 1.0))
def test_grpo_is_bounded_by_the_size_of_the_group(rewards: np.ndarray, epsilon: float) -> None:
    got = group_advantages(make_advantage(GrpoAdvantage(type="grpo", epsilon=epsilon)), rewards)
    assert np.abs(got).max() <= np.sqrt(len(rewards)) + 1e-9
