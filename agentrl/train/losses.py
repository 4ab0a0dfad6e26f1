"""The policy-gradient loss over sampled tokens, as a weighted sum that adds up over microbatches.

Each token carries its share of the batch (`weights_N`), so the gradient is the same however the
batch is cut. Log-ratios are clamped before `exp`: one very unlikely token must not turn the loss
into infinity.

The ratio compares the weights being trained with those before the update. Without a correction
these stand in for the sampling ones: the ratio is taken to the rollout's log-probs. With truncated
importance sampling (`tis_max`) the ratio is taken to the trainer's own log-probs at the old
weights, which one update a batch makes equal to the current ones, and the gap to the rollout
becomes a bounded weight.

Replayed tokens were sampled by weights that are further away, and the clip bound leaves a bad token
that became likely a weight without limit. So their ratio is truncated at `ratio_max`: such a token
still pushes in its direction, with that weight at most.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from agentrl.config.sections import PpoClipLoss
from agentrl.train.batches import SampledTokens

# Shapes: N sampled tokens of a microbatch.

MAX_LOG_RATIO = 20.0
"""exp(20) is about 5e8: far outside of every clip bound, far inside of float32."""


class PolicyLoss(NamedTuple):
    loss: Tensor
    """A scalar: this microbatch's part of the mean over the batch."""
    importance_ratios_N: Tensor
    """Trainer over rollout, before clipping; holds no graph."""
    is_clipped_N: Tensor
    """Where the clip bound is in force, so that the token gives no gradient."""


def ppo_clip_loss(
    section: PpoClipLoss,
    *,
    logprobs_N: Tensor,
    tokens: SampledTokens,
    ref_logprobs_N: Tensor | None,
    ratio_max: float = inf,
) -> PolicyLoss:
    """`ref_logprobs_N` of the weights before training; asked for exactly when `kl_coef` > 0.

    `ratio_max` bounds the ratios of replayed tokens, and of no others.
    """
    assert (ref_logprobs_N is not None) == (section.kl_coef > 0)
    old_N = tokens.logprobs_N if section.tis_max is None else logprobs_N.detach()
    ratio_max_N = torch.where(tokens.is_replayed_N, ratio_max, inf)
    ratio_N = _truncated(_ratio(logprobs_N, old_N), ratio_max_N)
    clipped_N = ratio_N.clamp(1 - section.clip_low, 1 + section.clip_high)
    free_N = ratio_N * tokens.advantages_N
    bound_N = clipped_N * tokens.advantages_N
    loss_N = -torch.minimum(free_N, bound_N)
    importance_N = _ratio(logprobs_N.detach(), tokens.logprobs_N)
    if section.tis_max is not None:
        loss_N = loss_N * torch.minimum(importance_N, ratio_max_N.clamp(max=section.tis_max))
    if ref_logprobs_N is not None:
        loss_N = loss_N + section.kl_coef * k3_divergence(logprobs_N, ref_logprobs_N)
    return PolicyLoss(
        loss=(loss_N * tokens.weights_N).sum(),
        importance_ratios_N=importance_N,
        is_clipped_N=(bound_N < free_N).detach(),
    )


def k3_divergence(logprobs_N: Tensor, other_N: Tensor) -> Tensor:
    """Per token, KL(p || other) estimated from samples of p: unbiased, and never negative."""
    log_ratio_N = _clamped(other_N - logprobs_N)
    return log_ratio_N.exp() - log_ratio_N - 1


def _ratio(logprobs_N: Tensor, other_N: Tensor) -> Tensor:
    return _clamped(logprobs_N - other_N).exp()


def _truncated(ratio_N: Tensor, max_N: Tensor) -> Tensor:
    """At most `max_N`; a ratio above it keeps the gradient of that weight, where a clamp has none."""
    return ratio_N * (max_N / ratio_N.detach()).clamp(max=1)


def _clamped(log_ratio_N: Tensor) -> Tensor:
    return log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
