"""What a step reports: one line of metrics, and the columns that the inspector shows token by token.

Ratios are reported raw, before any clipping, and `logprob_diff` is the distance between the
trainer's and the rollout's log-probs of the same fresh tokens: on-policy and with a sound engine it
is rounding error, so a rise means that one side computes something else. What is said of replayed
tokens stands under names of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from agentrl.types import TrainingSample

Column = NDArray[np.float32]
ScalarT = TypeVar("ScalarT", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedSample:
    """One sample as the trainer saw it: columns as long as its ids, 0 where nothing was sampled."""

    trajectory_id: str
    group_id: str
    advantages: Column
    trainer_logprobs: Column
    importance_ratios: Column
    is_clipped: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepResult:
    """One optimizer step. `step` counts from 1, so it is also the version of the new weights."""

    step: int
    metrics: Mapping[str, float]
    samples: tuple[TrainedSample, ...]
    """In the order they were given."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenReport:
    """One entry a sampled token, of a microbatch or of the whole batch."""

    trainer_logprobs: Column
    rollout_logprobs: Column
    importance_ratios: Column
    is_clipped: NDArray[np.bool_]
    entropy: Column
    ref_kl: Column
    """Zeros without a KL penalty."""
    is_replayed: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedShare:
    """What one replica computed of a step: all of it, when it trains alone."""

    samples: Mapping[int, TrainedSample]
    """By their place in the batch."""
    reports: tuple[TokenReport, ...]
    """One a microbatch."""
    loss: float
    """Its part of the loss of the whole batch."""
    num_tokens: int
    """Of its microbatches, padding included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedStep:
    """The update of a step, which is the same on every replica."""

    step: int
    learning_rate: float
    grad_norm: float | None
    """Before clipping; None when there was nothing to learn from and no weight changed."""


def result_of(shares: Sequence[TrainedShare], applied: AppliedStep) -> StepResult:
    """One step put together from what each replica did of it."""
    by_place = {place: sample for share in shares for place, sample in share.samples.items()}
    samples = tuple(by_place[place] for place in range(len(by_place)))
    metrics = {"learning_rate": applied.learning_rate, "samples": float(len(samples))}
    if applied.grad_norm is not None:
        num_tokens = sum(share.num_tokens for share in shares)
        metrics |= {
            "loss": sum(share.loss for share in shares),
            "grad_norm": applied.grad_norm,
            "padding_fraction": 1 - sum(len(s.advantages) for s in samples) / num_tokens,
            **token_metrics(join([report for share in shares for report in share.reports])),
        }
    return StepResult(step=applied.step, metrics=metrics, samples=samples)


def join(reports: Sequence[TokenReport]) -> TokenReport:
    columns = {
        column.name: np.concatenate([getattr(report, column.name) for report in reports])
        for column in fields(TokenReport)
    }
    return TokenReport(**columns)


def token_metrics(report: TokenReport) -> dict[str, float]:
    return {
        "sampled_tokens": float(len(report.is_clipped)),
        "ref_kl": float(report.ref_kl.mean()),
        "entropy": float(report.entropy.mean()),
        **_distances(report, ~report.is_replayed, prefix=""),
        **_distances(report, report.is_replayed, prefix="replayed_"),
    }


def _distances(report: TokenReport, chosen: NDArray[np.bool_], *, prefix: str) -> dict[str, float]:
    """How far the weights being trained are from those that sampled, over the chosen tokens."""
    if not chosen.any():
        return {}
    ratios = report.importance_ratios[chosen].astype(np.float64)
    difference = np.abs(report.trainer_logprobs - report.rollout_logprobs)[chosen]
    values = {
        "importance_ratio_min": float(ratios.min()),
        "importance_ratio_mean": float(ratios.mean()),
        "importance_ratio_max": float(ratios.max()),
        "clip_fraction": float(report.is_clipped[chosen].mean()),
        "approx_kl": float((ratios - 1 - np.log(ratios)).mean()),
        "logprob_diff_mean": float(difference.mean()),
        "logprob_diff_max": float(difference.max()),
    }
    return {f"{prefix}{name}": value for name, value in values.items()}


def split_by_sample(
    report: TokenReport, samples: Sequence[TrainingSample], members: Sequence[int]
) -> dict[int, TrainedSample]:
    """Tokens stand sample by sample, in the order of `members`, which are places in `samples`."""
    ends = np.cumsum([int(samples[place].loss_mask.sum()) for place in members])
    starts = [0, *ends[:-1]]
    return {
        place: _trained(report, samples[place], slice(start, end))
        for place, start, end in zip(members, starts, ends, strict=True)
    }


def _trained(report: TokenReport, sample: TrainingSample, part: slice) -> TrainedSample:
    return TrainedSample(
        trajectory_id=sample.trajectory_id,
        group_id=sample.group_id,
        advantages=sample.advantages,
        trainer_logprobs=_spread(report.trainer_logprobs[part], sample.loss_mask),
        importance_ratios=_spread(report.importance_ratios[part], sample.loss_mask),
        is_clipped=_spread(report.is_clipped[part], sample.loss_mask),
    )


def _spread(values: NDArray[ScalarT], mask: NDArray[np.bool_]) -> NDArray[ScalarT]:
    column = np.zeros(len(mask), dtype=values.dtype)
    column[mask] = values
    return column
