"""A model small enough for finite differences, and samples whose tokens mean nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.types import TrainingSample

VOCABULARY = 24

MakeModel = Callable[[], Qwen3ForCausalLM]
MakeSample = Callable[..., TrainingSample]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_model() -> MakeModel:
    """Always the same weights, large enough that the logits are far from uniform."""

    def make() -> Qwen3ForCausalLM:
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=128,
            initializer_range=0.3,
            tie_word_embeddings=True,
        )
        return Qwen3ForCausalLM(config).eval()

    return make


@pytest.fixture
def make_sample() -> MakeSample:
    """A row of a prompt and turns: `sampled` says which positions the policy sampled."""

    def make(
        length: int = 8,
        *,
        seed: int = 0,
        sampled: tuple[int, ...] = (3, 4, 6),
        advantage: float = 1.0,
        rollout_logprob: float = -2.0,
        is_replayed: bool = False,
    ) -> TrainingSample:
        mask = np.zeros(length, dtype=np.bool_)
        mask[list(sampled)] = True
        return TrainingSample(
            trajectory_id=f"t{seed}",
            group_id="g",
            ids=np.random.default_rng(seed).integers(0, VOCABULARY, length, dtype=np.int32),
            loss_mask=mask,
            rollout_logprobs=np.where(mask, np.float32(rollout_logprob), np.float32(0)),
            policy_versions=np.where(mask, 0, -1).astype(np.int32),
            advantages=np.where(mask, np.float32(advantage), np.float32(0)),
            is_replayed=is_replayed,
        )

    return make
