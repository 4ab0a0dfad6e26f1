"""Cuts the rows a trainer gets from a finished group.

This is where reward, outcome and tokens meet: the outcome decides whether an attempt counts, the
rewards of those that count become advantages, and every row of theirs that holds a sampled token
becomes one `TrainingSample`. What happened to the group is said in words, so that a dropped group
can be counted and shown.

Invariants
- `loss_mask` is true exactly on sampled tokens, for any number of turns.
- An attempt that does not count (`drop`, `retry`) takes no part in the baseline of its siblings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from agentrl.config.sections import DrGrpoAdvantage, GrpoAdvantage, RlooAdvantage
from agentrl.train.advantages import group_advantages, has_signal, make_advantage
from agentrl.types import Group, Origin, Outcome, OutcomeAction, Row, TrainingSample, Trajectory


class GroupFate(StrEnum):
    """What training makes of a group."""

    TRAINED = "trained"
    TOO_SMALL = "too_small"
    """Fewer members than `min_group` came back fit for training."""
    ZERO_VARIANCE = "zero_variance"
    """All rewards are equal, and the policy is to drop such groups."""
    NOTHING_SAMPLED = "nothing_sampled"
    """No member sampled a token: each was over before its first turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCut:
    """The samples of one group, none unless its fate is `TRAINED`."""

    group_id: str
    fate: GroupFate
    samples: tuple[TrainingSample, ...] = ()


class GroupCutter:
    """Holds the run's rules: what outcomes mean, how rewards compare, how small a group may be."""

    def __init__(
        self,
        section: GrpoAdvantage | DrGrpoAdvantage | RlooAdvantage,
        *,
        action: Callable[[Outcome], OutcomeAction],
        min_group: int,
    ) -> None:
        self._advantage = make_advantage(section)
        self._keeps_zero_variance = section.zero_variance == "keep"
        self._action = action
        self._min_group = min_group

    def cut(self, group: Group) -> GroupCut:
        counted = [
            (trajectory, reward)
            for trajectory in group.trajectories
            if (reward := self._reward(trajectory)) is not None
        ]
        if len(counted) < max(self._min_group, 1):
            return GroupCut(group_id=group.group_id, fate=GroupFate.TOO_SMALL)
        rewards = np.array([reward for _, reward in counted], dtype=np.float64)
        if not has_signal(rewards) and not self._keeps_zero_variance:
            return GroupCut(group_id=group.group_id, fate=GroupFate.ZERO_VARIANCE)
        advantages = group_advantages(self._advantage, rewards)
        samples = tuple(
            _cut_row(trajectory, row, float(advantage), is_replayed=group.reuse > 0)
            for (trajectory, _), advantage in zip(counted, advantages, strict=True)
            for row in trajectory.rows
            if any(len(segment) for segment in row if segment.origin is Origin.SAMPLED)
        )
        fate = GroupFate.TRAINED if samples else GroupFate.NOTHING_SAMPLED
        return GroupCut(group_id=group.group_id, fate=fate, samples=samples)

    def _reward(self, trajectory: Trajectory) -> float | None:
        """The reward that counts; None when the attempt does not."""
        match self._action(trajectory.outcome):
            case "train":
                assert trajectory.reward is not None, "only scored outcomes can be trained on"
                return trajectory.reward
            case "zero":
                return 0.0
            case "drop" | "retry":
                return None


def _cut_row(
    trajectory: Trajectory, row: Row, advantage: float, *, is_replayed: bool
) -> TrainingSample:
    ids = np.concatenate([segment.ids for segment in row])
    mask = np.repeat([s.origin is Origin.SAMPLED for s in row], [len(s) for s in row])
    assert not mask[0], "a row starts with a prompt: nothing predicts its first token"
    logprobs = np.zeros(len(ids), dtype=np.float32)
    logprobs[mask] = np.concatenate([s.logprobs for s in row if s.logprobs is not None])
    versions = np.full(len(ids), -1, dtype=np.int32)
    versions[mask] = np.concatenate(
        [s.policy_versions for s in row if s.policy_versions is not None]
    )
    return TrainingSample(
        trajectory_id=trajectory.trajectory_id,
        group_id=trajectory.group_id,
        ids=ids,
        loss_mask=mask,
        rollout_logprobs=logprobs,
        policy_versions=versions,
        advantages=np.where(mask, np.float32(advantage), np.float32(0)),
        is_replayed=is_replayed,
    )
