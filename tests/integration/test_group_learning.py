"""Groups of attempts, advantages, samples and optimizer steps together: what is rewarded comes up."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.config.sections import OutcomesSection, TrainSection
from agentrl.train.samples import GroupCutter, GroupFate
from agentrl.train.trainer import Trainer
from agentrl.types import Group, Origin, Segment, Trajectory

VOCABULARY, GROUP_SIZE, TEMPERATURE = 12, 8, 1.5


def tiny_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
    )
    return Qwen3ForCausalLM(config).eval()


@torch.no_grad()
def attempt_group(model: Qwen3ForCausalLM, shown: int, version: int) -> Group:
    """Two sampled tokens each; the reward is the share that repeats what was shown."""
    rows = torch.full((GROUP_SIZE, 1), shown)
    columns = []
    for _ in range(2):
        logprobs = (model(rows).logits[:, -1] / TEMPERATURE).log_softmax(-1)
        drawn = torch.multinomial(logprobs.exp(), 1)
        columns.append(logprobs.gather(1, drawn))
        rows = torch.cat([rows, drawn], dim=1)
    logprobs_GT = torch.cat(columns, dim=1).numpy()
    trajectories = tuple(
        Trajectory(
            trajectory_id=f"{version}-{shown}-{sibling}",
            task_id=str(shown),
            group_id=f"{version}-{shown}",
            sibling=sibling,
            reward=float(np.mean(row[1:] == shown)),
            rows=(
                (
                    Segment(origin=Origin.PROMPT, turn=0, ids=row[:1]),
                    Segment(
                        origin=Origin.SAMPLED,
                        turn=0,
                        ids=row[1:],
                        logprobs=logprobs_GT[sibling],
                        policy_versions=np.full(2, version, dtype=np.int32),
                    ),
                ),
            ),
        )
        for sibling, row in enumerate(rows.numpy().astype(np.int32))
    )
    return Group(
        group_id=f"{version}-{shown}",
        task_id=str(shown),
        size=GROUP_SIZE,
        trajectories=trajectories,
    )


@pytest.mark.slow
@pytest.mark.parametrize("advantage", ["grpo", "drgrpo", "rloo"])
def test_every_advantage_teaches_what_is_rewarded(
    advantage: Literal["grpo", "drgrpo", "rloo"],
) -> None:
    torch.set_num_threads(1)
    section = TrainSection.model_validate(
        {
            "steps": 50,
            "groups_per_step": 8,
            "microbatch_tokens": 96,
            "advantage": {"type": advantage},
            "optimizer": {"learning_rate": 1.5e-2, "schedule": "constant"},
        }
    )
    model = tiny_model()
    trainer = Trainer(model, section, temperature=TEMPERATURE)
    cutter = GroupCutter(section.advantage, action=OutcomesSection().action, min_group=2)
    rewards = []
    for version in range(section.steps):
        groups = [attempt_group(model, shown, version) for shown in range(8)]
        cuts = [cutter.cut(group) for group in groups]
        assert {cut.fate for cut in cuts} <= {GroupFate.TRAINED, GroupFate.ZERO_VARIANCE}
        result = trainer.step([sample for cut in cuts for sample in cut.samples])
        if result.samples:
            assert result.metrics["logprob_diff_max"] < 1e-4
            assert result.metrics["clip_fraction"] == 0
        rewards.append(np.mean([t.reward for group in groups for t in group.trajectories]))
    assert np.mean(rewards[:3]) < 0.3
    assert np.mean(rewards[-5:]) > 0.9
