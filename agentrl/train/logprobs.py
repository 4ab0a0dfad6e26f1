"""The trainer's own log-probs of sampled tokens, under the distribution they were sampled from.

Sampling divides logits by the temperature, so the same is done here; a truncated distribution
(top_p, top_k) is refused, because the set of kept tokens is known only to the weights that
sampled. Logits are computed at sampled tokens alone: most positions of an agent's row are prompt
and tool text.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.train.batches import MicroBatch, pack
from agentrl.types import TrainingSample

# Shapes: N sampled tokens of a microbatch, V vocabulary.

_PROBE_TOLERANCE = 1e-3


class TokenLogprobs(NamedTuple):
    logprobs_N: Tensor
    entropy_N: Tensor
    """Of the whole distribution at each sampled token, in nats; holds no graph."""


def check_sampling(*, temperature: float, top_p: float, top_k: int) -> None:
    """Refuses sampling whose log-probs a trainer cannot recompute."""
    if temperature <= 0:
        raise ValueError(
            f"rollout.temperature: got {temperature}, wanted > 0 to train: greedy choices have no "
            "log-probs to learn from"
        )
    if top_p < 1 or top_k > 0:
        raise ValueError(
            f"rollout.top_p, rollout.top_k: got {top_p} and {top_k}, wanted 1.0 and 0 to train: "
            "the trainer cannot know which tokens a truncated distribution kept, so ratios would "
            "be biased"
        )


def sampled_logprobs(
    model: PreTrainedModel, batch: MicroBatch, *, temperature: float
) -> TokenLogprobs:
    """One forward pass over a microbatch."""
    hidden_RTH = model.base_model(
        input_ids=batch.ids_RT.to(model.device),
        position_ids=batch.positions_RT.to(model.device),
        use_cache=False,
    ).last_hidden_state
    hidden_NH = hidden_RTH.flatten(0, 1)[batch.predicted_at_N.to(model.device)]
    logits_NV = model.get_output_embeddings()(hidden_NH).float() / temperature
    logprobs_NV = logits_NV.log_softmax(-1)
    targets_N = batch.targets_N.to(model.device)
    with torch.no_grad():
        entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return TokenLogprobs(logprobs_NV.gather(-1, targets_N[:, None]).squeeze(-1), entropy_N)


def check_model(model: PreTrainedModel) -> None:
    """Refuses a model whose own forward pass gives other log-probs than `sampled_logprobs`."""
    samples = [_probe(length) for length in (7, 4, 3)]
    (batch,) = pack(samples, budget=14, aggregate="token_mean")
    with torch.no_grad():
        packed_N = sampled_logprobs(model, batch, temperature=1.0).logprobs_N
        alone_N = torch.cat([_logprobs_alone(model, samples[index]) for index in batch.members])
    difference = float((packed_N - alone_N).abs().max())
    if not difference < _PROBE_TOLERANCE:
        raise ValueError(
            f"model: {type(model).__name__} gives log-probs that differ by {difference:.3g} when "
            f"samples are packed, wanted < {_PROBE_TOLERANCE}: it ignores that position ids start "
            "again, or its logits are more than one linear map of its last layer; choose another"
        )


def _probe(length: int) -> TrainingSample:
    is_sampled = np.arange(length) > 0
    return TrainingSample(
        trajectory_id="probe",
        group_id="probe",
        ids=np.arange(length, dtype=np.int32),
        loss_mask=is_sampled,
        rollout_logprobs=np.zeros(length, dtype=np.float32),
        policy_versions=np.where(is_sampled, 0, -1).astype(np.int32),
        advantages=np.zeros(length, dtype=np.float32),
    )


def _logprobs_alone(model: PreTrainedModel, sample: TrainingSample) -> Tensor:
    ids_T = torch.from_numpy(sample.ids).long().to(model.device)
    logits_TV: Tensor = model(ids_T[None], use_cache=False).logits[0, :-1]
    logprobs_TV = logits_TV.float().log_softmax(-1)
    return logprobs_TV.gather(-1, ids_T[1:, None]).squeeze(-1)
