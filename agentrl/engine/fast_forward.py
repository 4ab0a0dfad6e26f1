"""The same pass as `StockForward`, written out for plain Llama and Qwen3 models.

A small model on a CPU spends a third of a decode step between its matrix products; this leaves
out what a general class must do there. It reads the model's own parameters, so new weights need
nothing here. Results differ from the model's own code by rounding only.

Legend: N rows, Q ids a row, T = N*Q, E hidden size, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen3ForCausalLM

from agentrl.engine.kv_cache import Block, KVCache, round_up


def has_fast_forward(model: PreTrainedModel) -> bool:
    config = model.config
    return (
        type(model) in (LlamaForCausalLM, Qwen3ForCausalLM)
        and model.dtype == torch.float32
        and config.hidden_act == "silu"
        and not any(name.endswith("proj.bias") for name, _ in model.named_parameters())
        # Rotations that change with the length seen are left to the model's own code.
        and config.rope_parameters["rope_type"] in ("default", "linear", "llama3", "yarn")
    )


class Span(NamedTuple):
    """How far a block's rows attend together, and the rows that attend further by themselves."""

    length: int
    mask: Tensor
    """[N, 1, G*Q, length], for the queries of all G heads that share a key/value head."""
    longer: list[tuple[int, int, int]]
    """Row, slot and length of each."""


_MAX_ALONE = 16
_ALONE_COST = 192
"""What attention of one row by itself costs beside its positions, counted in positions."""


class FastForward:
    def __init__(self, model: PreTrainedModel, cache: KVCache) -> None:
        assert has_fast_forward(model)
        self._decoder: Any = model.model
        self._head: Any = model.lm_head
        self._cache = cache
        attention = self._decoder.layers[0].self_attn
        self._head_dim: int = attention.head_dim
        self._groups: int = attention.num_key_value_groups
        places = torch.arange(cache.context_tokens, device=cache.device)[None]
        cos, sin = self._decoder.rotary_emb(self._head.weight, places)
        self._cos = cos[0]
        # The half that moves to the front changes its sign.
        first, second = sin[0].chunk(2, dim=-1)
        self._sin = torch.cat((-first, second), dim=-1)

    def __call__(self, block: Block) -> Tensor:
        decoder = self._decoder
        rotation = (self._cos[block.positions][:, None], self._sin[block.positions][:, None])
        span = span_of(block, groups=self._groups)
        hidden = F.embedding(block.ids.view(-1), decoder.embed_tokens.weight)  # [T, E]
        for index, layer in enumerate(decoder.layers):
            normed = _rms_norm(hidden, layer.input_layernorm)
            attended = self._attend(index, layer.self_attn, normed, block, rotation, span)
            hidden = torch.addmm(hidden, attended, layer.self_attn.o_proj.weight.t())
            normed = _rms_norm(hidden, layer.post_attention_layernorm)
            gate = F.silu(F.linear(normed, layer.mlp.gate_proj.weight))
            gate *= F.linear(normed, layer.mlp.up_proj.weight)
            hidden = torch.addmm(hidden, gate, layer.mlp.down_proj.weight.t())
        last = hidden.view(*block.ids.shape, -1)[:, -1]
        return F.linear(_rms_norm(last, decoder.norm), self._head.weight)

    def _attend(
        self,
        index: int,
        attention: Any,
        hidden: Tensor,
        block: Block,
        rotation: tuple[Tensor, Tensor],
        span: Span,
    ) -> Tensor:
        num_rows, width = block.ids.shape
        heads = (num_rows, width, -1, self._head_dim)
        query = F.linear(hidden, attention.q_proj.weight).view(heads)
        key = F.linear(hidden, attention.k_proj.weight).view(heads)
        value = F.linear(hidden, attention.v_proj.weight).view(heads).transpose(1, 2)
        if hasattr(attention, "q_norm"):
            query, key = _rms_norm(query, attention.q_norm), _rms_norm(key, attention.k_norm)
        query = _rotate(query.transpose(1, 2), *rotation)  # [N, H, Q, D]
        key = _rotate(key.transpose(1, 2), *rotation)  # [N, K, Q, D]
        self._cache.store(index, block, key, value)
        # Query heads that share a key/value head become further queries of that head.
        query = query.reshape(num_rows, key.shape[1], -1, self._head_dim)
        keys, values = self._cache.rows(index, block, span.length)
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=span.mask)
        for row, slot, length in span.longer:
            keys, values = self._cache.slot(index, slot, length)
            attended[row] = F.scaled_dot_product_attention(query[row : row + 1], keys, values)[0]
        attended = attended.reshape(num_rows, -1, width, self._head_dim).transpose(1, 2)
        return attended.reshape(num_rows * width, -1)


def span_of(block: Block, *, groups: int) -> Span:
    """The cheapest split: a few long sequences must not make all others as long as they are."""
    length, longer = block.mask.shape[-1], []
    if block.ids.shape[1] == 1:
        order = np.argsort(-block.lengths)[: _MAX_ALONE + 1]
        longest = block.lengths[order]
        alone = np.concatenate(([0], (longest + _ALONE_COST).cumsum()[:-1]))
        split = int((len(block.lengths) * longest + alone).argmin())
        length = min(round_up(int(longest[split])), length)
        slots = block.slots.tolist()
        longer = [(row, slots[row], int(block.lengths[row])) for row in order[:split].tolist()]
    mask = block.mask[..., :length]
    return Span(length, mask.repeat(1, 1, groups, 1) if groups > 1 else mask, longer)


def _rms_norm(x: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return (x * cos).addcmul_(torch.cat((second, first), dim=-1), signed_sin)
