"""Tiny models whose greedy continuations vary, and what the model itself says about ids."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from agentrl.config.sections import ScratchModel
from agentrl.engine.engine import Sampling, WeightUpdate
from agentrl.models.load import load_model


def tiny_qwen(seed: int = 0) -> PreTrainedModel:
    section = ScratchModel.model_validate(
        {
            "from": "scratch",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 8,
            "init_std": 0.4,
        }
    )
    return without_eos(load_model(section, seed=seed).model)


def tiny_llama(**changes: object) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=272,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.4,
        max_position_embeddings=256,
        **changes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return without_eos(LlamaForCausalLM(config).eval())


def without_eos(model: PreTrainedModel) -> PreTrainedModel:
    """`model.generate` would stop there."""
    model.generation_config.eos_token_id = None
    return model


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (n,), generator=generator).tolist() for n in lengths]


def greedy(model: PreTrainedModel, ids: Sequence[int], num_tokens: int) -> list[int]:
    """What `model.generate` continues `ids` with."""
    context = torch.tensor([list(ids)])
    config = GenerationConfig(max_new_tokens=num_tokens, do_sample=False, pad_token_id=256)
    out = model.generate(context, attention_mask=torch.ones_like(context), generation_config=config)
    return out[0, len(ids) :].tolist()


@torch.no_grad()
def full_logits(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    return model(torch.tensor([list(ids)])).logits[0]


def reference_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], sampled: Sequence[int], sampling: Sampling
) -> Tensor:
    """Log-probs of `sampled` by one pass over everything, one token at a time."""
    logits = full_logits(model, [*prompt, *sampled])[len(prompt) - 1 : -1]
    rows = [truncated(row / (sampling.temperature or 1.0), sampling) for row in logits]
    return torch.stack([row.log_softmax(-1)[i] for row, i in zip(rows, sampled, strict=True)])


def truncated(logits: Tensor, sampling: Sampling) -> Tensor:
    if not sampling.temperature:
        return logits
    order = logits.argsort(descending=True)
    kept = order[: sampling.top_k or None]
    masses = logits[kept].softmax(-1).cumsum(-1)
    num_kept = int((masses < sampling.top_p).sum()) + 1
    masked = torch.full_like(logits, -torch.inf)
    masked[kept[:num_kept]] = logits[kept[:num_kept]]
    return masked


def weights_of(model: PreTrainedModel) -> WeightUpdate:
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
