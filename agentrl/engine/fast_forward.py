"""The same pass as `StockForward`, written out for plain Llama and Qwen3 models.

A small model on a CPU spends a third of a decode step between its matrix products; this leaves
out what a general class must do there. It reads the model's own parameters, so new weights need
nothing here. Results differ from the model's own code by rounding only.

Legend: N rows, Q ids a row, T = N*Q, E hidden size, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen3ForCausalLM

from agentrl.engine.kv_cache import Block, KVCache, round_up

_Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Of one layer: its index, queries, and the block's own keys and values."""


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


class _Layer(NamedTuple):
    """The parameters of one layer, looked up once: a module's attributes cost more than a product
    of a small matrix. They are written into when weights change, never replaced."""

    input_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: Any) -> Self:
        attention, mlp = layer.self_attn, layer.mlp
        has_norms = hasattr(attention, "q_norm")
        return cls(
            input_norm=layer.input_layernorm.weight,
            query=attention.q_proj.weight,
            key=attention.k_proj.weight,
            value=attention.v_proj.weight,
            query_norm=attention.q_norm.weight if has_norms else None,
            key_norm=attention.k_norm.weight if has_norms else None,
            output=attention.o_proj.weight.t(),
            mlp_norm=layer.post_attention_layernorm.weight,
            gate=mlp.gate_proj.weight,
            up=mlp.up_proj.weight,
            down=mlp.down_proj.weight.t(),
        )


class Span(NamedTuple):
    """How far a block's rows attend together, and the rows that attend further by themselves."""

    length: int
    longer: list[tuple[int, int, int]]
    """Row, slot and length of each."""


_MAX_ALONE = 16
_ALONE_COST = 192
"""What attention of one row by itself costs beside its positions, counted in positions."""


class FastForward:
    def __init__(self, model: PreTrainedModel, cache: KVCache) -> None:
        assert has_fast_forward(model)
        decoder: Any = model.model
        self._cache = cache
        self._embedding: Tensor = decoder.embed_tokens.weight
        self._layers = [_Layer.of(layer) for layer in decoder.layers]
        self._last_norm: Tensor = decoder.norm.weight
        self._head: Tensor = model.lm_head.weight
        self._epsilon: float = decoder.norm.variance_epsilon
        attention = decoder.layers[0].self_attn
        self._head_dim: int = attention.head_dim
        self._groups: int = attention.num_key_value_groups
        places = torch.arange(cache.context_tokens, device=cache.device)[None]
        cos, sin = decoder.rotary_emb(self._head, places)
        self._cos = cos[0]
        # The half that moves to the front changes its sign.
        first, second = sin[0].chunk(2, dim=-1)
        self._sin = torch.cat((-first, second), dim=-1)

    def __call__(self, block: Block) -> Tensor:
        rotation = (self._cos[block.positions][:, None], self._sin[block.positions][:, None])
        attend = self._attention(block)
        hidden = F.embedding(block.ids.view(-1), self._embedding)  # [T, E]
        for index, layer in enumerate(self._layers):
            normed = self._norm(hidden, layer.input_norm)
            query, key, value = self._project(layer, normed, block, rotation)
            self._cache.store(index, block, key, value)
            attended = attend(index, query, key, value).transpose(1, 2)
            hidden = torch.addmm(hidden, attended.reshape(len(hidden), -1), layer.output)
            normed = self._norm(hidden, layer.mlp_norm)
            gate = F.silu(F.linear(normed, layer.gate), inplace=True)
            gate *= F.linear(normed, layer.up)
            hidden = torch.addmm(hidden, gate, layer.down)
        last = hidden.view(*block.ids.shape, -1)[:, -1]
        return F.linear(self._norm(last, self._last_norm), self._head)

    def _project(
        self, layer: _Layer, hidden: Tensor, block: Block, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [N, H, Q, D], keys and values [N, K, Q, D]."""
        heads = (*block.ids.shape, -1, self._head_dim)
        query = F.linear(hidden, layer.query).view(heads)
        key = F.linear(hidden, layer.key).view(heads)
        value = F.linear(hidden, layer.value).view(heads).transpose(1, 2)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
        return (
            _rotate(query.transpose(1, 2), *rotation),
            _rotate(key.transpose(1, 2), *rotation),
            value,
        )

    # ------------------------------------------------------------------ attention

    def _attention(self, block: Block) -> _Attention:
        """How the block's rows attend, the same in every layer; gives [N, H, Q, D].

        Query heads that share a key/value head become further queries of that head.
        """
        if block.is_fresh:
            mask = self._for_groups(self._cache.fresh_mask(block))
            return lambda _, query, key, value: self._attend(query, key, value, mask)
        span = span_of(block, self._cache.span(block))
        mask = self._for_groups(self._cache.mask(block, span.length))
        return lambda index, query, *_: self._attend_slots(index, query, block, span, mask)

    def _attend_slots(
        self, index: int, query: Tensor, block: Block, span: Span, mask: Tensor
    ) -> Tensor:
        keys, values = self._cache.rows(index, block, span.length)
        attended = self._attend(query, keys, values, mask)
        for row, slot, length in span.longer:
            keys, values = self._cache.slot(index, slot, length)
            attended[row] = self._attend(query[row : row + 1], keys, values, None)[0]
        return attended

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        shape = query.shape
        query = query.reshape(len(query), keys.shape[1], -1, self._head_dim)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask).reshape(shape)

    def _for_groups(self, mask: Tensor) -> Tensor:
        return mask.repeat(1, 1, self._groups, 1) if self._groups > 1 else mask

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self._epsilon)


def span_of(block: Block, longest_length: int) -> Span:
    """The cheapest split: a few long sequences must not make all others as long as they are."""
    if block.ids.shape[1] > 1:
        return Span(longest_length, [])
    order = np.argsort(-block.lengths)[: _MAX_ALONE + 1]
    longest = block.lengths[order]
    alone = np.concatenate(([0], (longest + _ALONE_COST).cumsum()[:-1]))
    split = int((len(block.lengths) * longest + alone).argmin())
    slots = block.slots.tolist()
    longer = [(row, slots[row], int(block.lengths[row])) for row in order[:split].tolist()]
    return Span(min(round_up(int(longest[split])), longest_length), longer)


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return (x * cos).addcmul_(torch.cat((second, first), dim=-1), signed_sin)
