"""What a step and an evaluation came to, as plain values between the loop, the worker and the
record. Imports no torch: the driver stays light."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.engine.swap_cost import SwapCost
from agentrl.runtime.collector import Batch
from agentrl.runtime.failures import FailingEnv
from agentrl.train.report import AppliedStep, TrainedSample, TrainedShare, result_of
from agentrl.types import Group, Outcome, Trajectory

_FAILURES = (Outcome.ENV_ERROR, Outcome.UNSCORED)
"""Of the environment and of its rewards: another place or another try does not mend them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedStep:
    """What the training workers say of one optimizer step."""

    metrics: Mapping[str, float]
    fates: Mapping[str, str]
    """Group id to what training made of it."""
    advantages: Mapping[str, float]
    """Trajectory id to its advantage, of those that were trained on."""
    columns: Mapping[str, NDArray[Any]]
    """One value a token, sample after sample."""
    sample_lengths: Sequence[tuple[str, int]]
    """Trajectory id and number of tokens of each sample, in the order of `columns`."""

    @property
    def num_samples(self) -> int:
        return len(self.sample_lengths)

    def was_trained_on(self, group: Group) -> bool:
        return any(t.trajectory_id in self.advantages for t in group.trajectories)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientShare:
    """What one training worker says of its share of a step."""

    fates: Mapping[str, str]
    """Of all groups of the batch, which every worker cuts alike."""
    num_samples: int
    """Of the whole batch."""
    share: TrainedShare


def trained_step(shares: Sequence[GradientShare], applied: AppliedStep) -> TrainedStep:
    result = result_of([share.share for share in shares], applied)
    return TrainedStep(
        metrics={**result.metrics, "replicas": float(len(shares))},
        fates=shares[0].fates,
        advantages={sample.trajectory_id: _advantage(sample) for sample in result.samples},
        columns=_columns(result.samples),
        sample_lengths=[(s.trajectory_id, len(s.advantages)) for s in result.samples],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepReport:
    step: int
    trained: TrainedStep
    collect_s: float
    train_s: float
    publish_s: float
    """Until every serving worker had the new weights."""
    swaps: Sequence[SwapCost]
    """Since the step before, of each worker that serves rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    reward: float | None
    """Mean over the attempts that were scored; None when none was."""
    metrics: Mapping[str, float]
    """Means of the environment's metrics, each over the attempts that gave it."""
    num_scored: int
    num_lost: int
    """Attempts that could not be scored; they are no part of the mean."""


def evaluation_of(groups: Sequence[Group]) -> Evaluation:
    """Every group holds one attempt, or none when it was lost for good."""
    scored = [t for group in groups for t in group.trajectories if t.reward is not None]
    values: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in scored:
        for name, value in trajectory.metrics.items():
            values[name].append(value)
    return Evaluation(
        reward=mean_reward(scored),
        metrics={name: fmean(given) for name, given in values.items()},
        num_scored=len(scored),
        num_lost=len(groups) - len(scored),
    )


def mean_reward(trajectories: Sequence[Trajectory]) -> float | None:
    rewards = [t.reward for t in trajectories if t.reward is not None]
    return fmean(rewards) if rewards else None


def judge_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What judges were asked and what it took; empty where nobody was."""
    asked = [judgement for t in trajectories for judgement in t.judgements]
    if not asked:
        return {}
    return {
        "judge/questions": len(asked),
        "judge/without_verdict": sum(judgement.error is not None for judgement in asked),
        "judge/tries_mean": fmean(len(judgement.answers) for judgement in asked),
        "judge/tokens": sum(judgement.num_tokens for judgement in asked),
        "judge/seconds_mean": fmean(judgement.seconds for judgement in asked),
        "judge/seconds_max": max(judgement.seconds for judgement in asked),
    }


def swap_metrics(swaps: Sequence[SwapCost]) -> dict[str, float]:
    """What new weights cost the turns that ran; empty where no worker was asked."""
    if not swaps:
        return {}
    return {
        "weights/stopped_s_mean": fmean(swap.stopped_s for swap in swaps),
        "weights/stopped_s_max": max(swap.stopped_s for swap in swaps),
        "weights/stalled_turn_s": sum(swap.stalled_turn_s for swap in swaps),
        "weights/recomputed_tokens": sum(swap.recomputed_tokens for swap in swaps),
        "weights/drained_turns": sum(swap.drained_turns for swap in swaps),
        "weights/held_turns": sum(swap.held_turns for swap in swaps),
    }


def staleness_of(groups: Sequence[Group], trained_version: int) -> NDArray[np.int32]:
    """For each sampled token, how many versions old the weights were that sampled it."""
    versions = [segment.policy_versions for _, segment in _sampled(groups)]
    return trained_version - np.concatenate([*versions, np.zeros(0, dtype=np.int32)])


def num_tokens(groups: Sequence[Group]) -> int:
    """Of all rows, whatever their origin."""
    return sum(
        len(segment)
        for group in groups
        for trajectory in group.trajectories
        for row in trajectory.rows
        for segment in row
    )


def _sampled(groups: Sequence[Group]) -> Iterator[tuple[Trajectory, Any]]:
    for group in groups:
        for trajectory in group.trajectories:
            for row in trajectory.rows:
                for segment in row:
                    if segment.policy_versions is not None:
                        yield trajectory, segment


def since_batch(batch: Batch) -> list[str]:
    """What became of attempts that a batch waits for, in a line; none while none has ended."""
    if not batch.outcomes:
        return []
    counts = ", ".join(f"{count} {kind}" for kind, count in batch.outcomes.most_common())
    error = f"; the newest error: {batch.newest_error}" if batch.newest_error else ""
    return [f"attempts that ended since the last batch: {counts}{error}"]


def refuse_failing_env(batch: Batch, *, max_error_fraction: float, min_attempts: int) -> None:
    """Raise `FailingEnv` when too large a share of at least `min_attempts` attempts failed."""
    failed = {kind: batch.outcomes[kind] for kind in _FAILURES if batch.outcomes[kind]}
    ended = sum(batch.outcomes.values())
    if ended < min_attempts or sum(failed.values()) <= max_error_fraction * ended:
        return
    error = next(t.error for t in batch.dropped if t.outcome in failed)
    counts = ", ".join(f"{count} {kind}" for kind, count in failed.items())
    raise FailingEnv(
        f"of {ended} attempts too many left nothing to train on ({counts}): "
        f"outcomes.max_error_fraction allows {max_error_fraction}; one of them:\n{error}"
    )


def _advantage(sample: TrainedSample) -> float:
    """The largest in size; all sampled tokens of a row share one unless turns got credit."""
    return float(sample.advantages[np.argmax(np.abs(sample.advantages))])


_COLUMNS = ("advantages", "trainer_logprobs", "importance_ratios", "is_clipped")


def _columns(samples: Sequence[TrainedSample]) -> dict[str, NDArray[Any]]:
    if not samples:
        return {}
    return {
        name: np.concatenate([getattr(sample, name) for sample in samples]) for name in _COLUMNS
    }
