"""The loss and its gradient against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl.config.sections import PpoClipLoss
from agentrl.train.batches import SampledTokens
from agentrl.train.losses import PolicyLoss, ppo_clip_loss


def loss_of(
    section: PpoClipLoss,
    ratios: list[float],
    advantages: list[float],
    *,
    ref: list[float] | None = None,
    replayed: list[bool] | None = None,
    ratio_max: float = 2.0,
) -> tuple[PolicyLoss, torch.Tensor]:
    """Every token counts the same, and was sampled at log-prob -1."""
    count = len(ratios)
    logprobs = (torch.tensor(ratios, dtype=torch.float64).log() - 1).requires_grad_()
    tokens = SampledTokens(
        logprobs_N=torch.full((count,), -1.0, dtype=torch.float64),
        advantages_N=torch.tensor(advantages, dtype=torch.float64),
        weights_N=torch.full((count,), 1 / count, dtype=torch.float64),
        is_replayed_N=torch.tensor(replayed or [False] * count),
    )
    loss = ppo_clip_loss(
        section,
        logprobs_N=logprobs,
        tokens=tokens,
        ref_logprobs_N=None if ref is None else torch.tensor(ref, dtype=torch.float64),
        ratio_max=ratio_max,
    )
    loss.loss.backward()
    assert logprobs.grad is not None
    return loss, logprobs.grad


def test_bounds_are_separate_and_stop_the_gradient_beyond_them() -> None:
    section = PpoClipLoss(type="ppo_clip", clip_low=0.2, clip_high=0.3)
    ratios = [1.0, 1.25, 1.5, 0.9, 0.5, 1.5]
    advantages = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]
    loss, gradient = loss_of(section, ratios, advantages)
    # The third is held at 1.3 and the fifth at 0.8; the last is worse than allowed, so it counts.
    assert float(loss.loss.detach()) == pytest.approx(-(1.0 + 1.25 + 1.3 - 0.9 - 0.8 - 1.5) / 6)
    # d(-ratio * advantage) / d(logprob) = -ratio * advantage
    assert gradient.tolist() == pytest.approx([-1 / 6, -1.25 / 6, 0, 0.9 / 6, 0, 1.5 / 6])
    assert loss.is_clipped_N.tolist() == [False, False, True, False, True, False]
    assert loss.importance_ratios_N.tolist() == pytest.approx(ratios)


def test_equal_logprobs_make_every_ratio_exactly_one() -> None:
    loss, gradient = loss_of(PpoClipLoss(type="ppo_clip"), [1.0, 1.0], [2.0, -1.0])
    assert loss.importance_ratios_N.tolist() == [1.0, 1.0]
    assert gradient.tolist() == [-1.0, 0.5]


def test_truncated_importance_sampling_weighs_instead_of_clipping() -> None:
    section = PpoClipLoss(type="ppo_clip", tis_max=2.0)
    loss, gradient = loss_of(section, [0.5, 1.5, 8.0], [1.0, 1.0, 1.0])
    assert float(loss.loss.detach()) == pytest.approx(-(0.5 + 1.5 + 2.0) / 3)
    assert gradient.tolist() == pytest.approx([-0.5 / 3, -1.5 / 3, -2.0 / 3])
    assert loss.importance_ratios_N.tolist() == pytest.approx([0.5, 1.5, 8.0])
    assert not loss.is_clipped_N.any()


def test_ratios_of_replayed_tokens_are_truncated_and_still_push() -> None:
    section = PpoClipLoss(type="ppo_clip", clip_low=0.2, clip_high=0.2)
    ratios = [5.0, 5.0, 1.5, 5.0, 0.5]
    advantages = [-1.0, -1.0, -1.0, 1.0, 1.0]
    replayed = [False, True, True, True, True]
    loss, gradient = loss_of(section, ratios, advantages, replayed=replayed)
    # a bad token that became likely counts 5 when fresh and 2 when replayed; what is under the
    # bound, or held by the clip bound anyway, counts the same
    assert float(loss.loss.detach()) == pytest.approx(-(-5 - 2 - 1.5 + 1.2 + 0.5) / 5)
    assert gradient.tolist() == pytest.approx([5 / 5, 2 / 5, 1.5 / 5, 0, -0.5 / 5])
    assert loss.importance_ratios_N.tolist() == pytest.approx(ratios)


def test_the_smaller_of_two_truncations_holds_for_replayed_tokens() -> None:
    section = PpoClipLoss(type="ppo_clip", tis_max=3.0)
    _, gradient = loss_of(section, [8.0, 8.0, 1.5], [1.0] * 3, replayed=[False, True, True])
    assert gradient.tolist() == pytest.approx([-3 / 3, -2 / 3, -1.5 / 3])


def test_the_penalty_pulls_towards_the_reference() -> None:
    section = PpoClipLoss(type="ppo_clip", kl_coef=0.5)
    loss, gradient = loss_of(section, [1.0], [0.0], ref=[-1 + math.log(3)])
    assert float(loss.loss.detach()) == pytest.approx(0.5 * (3 - 1 - math.log(3)))
    # d(r - 1 - log r) / d(logprob) = 1 - r, with r = reference / policy = 3
    assert gradient.tolist() == pytest.approx([0.5 * (1 - 3)])


@pytest.mark.parametrize("gap", [99.0, -99.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("tis_max", [None, 2.0])
def test_a_token_that_was_next_to_impossible_keeps_everything_finite(
    gap: float, advantage: float, tis_max: float | None
) -> None:
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    tokens = SampledTokens(
        logprobs_N=torch.tensor([-1.0 - gap, -1.0]),
        advantages_N=torch.tensor([advantage, advantage]),
        weights_N=torch.tensor([0.5, 0.5]),
        is_replayed_N=torch.tensor([True, False]),
    )
    loss = ppo_clip_loss(
        PpoClipLoss(type="ppo_clip", tis_max=tis_max, kl_coef=1.0),
        logprobs_N=logprobs,
        tokens=tokens,
        ref_logprobs_N=tokens.logprobs_N,
    )
    loss.loss.backward()
    assert torch.isfinite(loss.loss)
    assert torch.isfinite(loss.importance_ratios_N).all()
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()
