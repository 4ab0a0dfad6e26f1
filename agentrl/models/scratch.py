"""A small Qwen3 with random weights, for runs that start from nothing."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentrl.config.sections import ScratchModel


def scratch_model(
    section: ScratchModel, tokenizer: PreTrainedTokenizerFast, *, seed: int
) -> Qwen3ForCausalLM:
    """Tied embeddings, float32; the same seed gives the same weights."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=section.hidden_size,
        intermediate_size=section.intermediate_size,
        num_hidden_layers=section.num_layers,
        num_attention_heads=section.num_heads,
        num_key_value_heads=section.num_kv_heads or section.num_heads,
        head_dim=section.head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": section.rope_theta},
        initializer_range=section.init_std,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype=torch.float32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
