"""Both passes give the model's own logits, for blocks of any shape."""

import pytest
import torch
from tiny_models import full_logits, prompts, tiny_llama, tiny_qwen
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from agentrl.engine.fast_forward import FastForward, has_fast_forward, span_of
from agentrl.engine.forward import Forward, StockForward, check_supported
from agentrl.engine.kv_cache import KVCache, Work
from agentrl.engine.torch_engine import make_forward

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TINY = {
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "initializer_range": 0.4,
    "max_position_embeddings": 256,
}


def tiny_gpt2() -> PreTrainedModel:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    return GPT2LMHeadModel(GPT2Config(vocab_size=272, initializer_range=0.4, **sizes)).eval()


FAST = {
    "qwen3": tiny_qwen,
    "llama": tiny_llama,
    "llama, tied": lambda: tiny_llama(tie_word_embeddings=True),
    "llama, llama3 rope": lambda: tiny_llama(rope_parameters=LLAMA3_ROPE),
}
OTHERS = {
    "gpt2": tiny_gpt2,
    "mistral": lambda: MistralForCausalLM(MistralConfig(**TINY)).eval(),
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**TINY)).eval(),
    "llama, biases": lambda: tiny_llama(attention_bias=True),
    "llama, dynamic rope": lambda: tiny_llama(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    ),
}


def play(model: PreTrainedModel, make: type[Forward]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same contexts, in chunks, gaps and single ids: logits got, and logits of full passes."""
    cache = KVCache(num_slots=6, context_tokens=64, dtype=model.dtype, device=model.device)
    forward = make(model, cache)
    contexts = dict(zip((0, 1, 2, 5), prompts(40, 9, 23, 64, seed=4), strict=True))
    got, expected = [], []
    filled = dict.fromkeys(contexts, 0)
    for chunks in (
        {0: 30, 2: 1, 5: 17},
        {1: 5, 5: 46},
        {0: 1, 1: 1, 2: 1, 5: 1},  # dense, slots 3 and 4 idle
        {0: 9, 1: 3, 2: 21},
    ):
        work = [
            Work(s, filled[s], contexts[s][filled[s] : filled[s] + n]) for s, n in chunks.items()
        ]
        block = cache.block(work)
        logits = forward(block)[block.rows]
        for (slot, start, ids), row in zip(work, logits, strict=True):
            filled[slot] = start + len(ids)
            got.append(row)
            expected.append(full_logits(model, contexts[slot][: filled[slot]])[-1])
    assert all(filled[slot] == len(ids) for slot, ids in contexts.items())
    return torch.stack(got), torch.stack(expected)


@pytest.mark.parametrize("name", [*FAST, *OTHERS])
def test_the_stock_pass_gives_the_models_logits(name: str) -> None:
    model = (FAST | OTHERS)[name]()
    with torch.inference_mode():
        got, expected = play(model, StockForward)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("stride", [1, 3])
def test_a_few_long_rows_are_attended_to_by_themselves(stride: int) -> None:
    """Dense and sparse blocks alike; the split is a matter of cost, never of results."""
    model = tiny_qwen()
    caches = [
        KVCache(num_slots=72, context_tokens=1024, dtype=model.dtype, device=model.device)
        for _ in range(2)
    ]
    lengths = {slot * stride: 10 + slot for slot in range(24)} | {5 * stride: 900, 7 * stride: 500}
    work = [Work(slot, length - 1, [slot]) for slot, length in lengths.items()]
    with torch.inference_mode():
        logits = []
        for make, cache in zip((StockForward, FastForward), caches, strict=True):
            forward = make(model, cache)
            for slot, length in lengths.items():
                forward(cache.block([Work(slot, 0, prompts(length, seed=slot)[0])]))
            block = cache.block(work)
            logits.append(forward(block)[block.rows].log_softmax(-1))
    span = span_of(block, caches[1].span(block))
    assert [(slot, length) for _, slot, length in span.longer] == [
        (5 * stride, 900),
        (7 * stride, 500),
    ]
    assert span.length == 48
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAST)
def test_the_fast_pass_equals_the_stock_pass(name: str) -> None:
    model = FAST[name]()
    with torch.inference_mode():
        fast, _ = play(model, FastForward)
        stock, _ = play(model, StockForward)
    torch.testing.assert_close(fast.log_softmax(-1), stock.log_softmax(-1), atol=1e-5, rtol=1e-5)


def test_eager_attention_takes_the_same_mask() -> None:
    model = tiny_llama(attn_implementation="eager")
    with torch.inference_mode():
        got, expected = play(model, StockForward)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_models_of_other_shapes_get_the_stock_pass(name: str) -> None:
    assert not has_fast_forward(OTHERS[name]())


def test_the_pass_is_chosen_by_the_model() -> None:
    model = tiny_qwen()
    cache = KVCache(num_slots=1, context_tokens=8, dtype=model.dtype, device=model.device)
    assert isinstance(make_forward(model, cache), FastForward)
    assert isinstance(make_forward(model.bfloat16(), cache), StockForward)


def test_what_the_engine_cannot_hold_is_refused() -> None:
    check_supported(tiny_llama(), 256)
    with pytest.raises(ValueError, match="at most 256 tokens, got 257"):
        check_supported(tiny_llama(), 257)
    windowed = MistralForCausalLM(MistralConfig(**TINY, sliding_window=32))
    check_supported(windowed, 32)
    with pytest.raises(ValueError, match="looks back 32 tokens"):
        check_supported(windowed, 33)
    hybrid = tiny_qwen()
    hybrid.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ValueError, match="linear_attention"):
        check_supported(hybrid, 32)
