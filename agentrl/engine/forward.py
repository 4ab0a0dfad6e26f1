"""One forward pass over a block, by the model's own code: works for any causal model with full
attention whose attention goes through a Hugging Face cache.

`agentrl.engine.fast_forward` does the same by hand for the commonest shape; this is what it is
tested against.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol

from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from agentrl.engine.kv_cache import Block, KVCache


class Forward(Protocol):
    def __call__(self, block: Block) -> Tensor:
        """Store the block's keys and values; return the logits of every row's last id, [N, V]."""
        ...


class StockForward:
    def __init__(self, model: PreTrainedModel, cache: KVCache) -> None:
        self._model = model
        self._cache = cache
        # The versions of transformers that we accept disagree on the argument's name.
        names = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    def __call__(self, block: Block) -> Tensor:
        span = self._cache.span(block)
        output = self._model(
            input_ids=block.ids,
            attention_mask=self._cache.mask(block, span),
            position_ids=block.positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: _BlockCache(self._cache, block, span)},
        )
        logits: Tensor = output.logits[:, -1]
        return logits


class _BlockCache(Cache):
    """What the model's attention layers see of the slots during one pass."""

    def __init__(self, cache: KVCache, block: Block, span: int) -> None:
        super().__init__(layers=[])
        self._slots = cache
        self._block = block
        self._span = span

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        self._slots.store(layer_idx, self._block, key_states, value_states)
        return self._slots.rows(layer_idx, self._block, self._span)


def check_supported(model: PreTrainedModel, context_tokens: int) -> None:
    """Full attention only: a slot holds every position, and nothing but keys and values."""
    config = model.config
    limit = config.max_position_embeddings
    if context_tokens > limit:
        raise ValueError(
            f"context_tokens: the model reads at most {limit} tokens, got {context_tokens}; lower it"
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if unsupported := kinds - {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"model: layers of {', '.join(sorted(unsupported))} keep state that this engine does "
            "not hold; use a model with full attention, or another engine"
        )
    window = getattr(config, "sliding_window", None)
    if window is not None and window < context_tokens:
        raise ValueError(
            f"context_tokens: the model looks back {window} tokens, got a context of "
            f"{context_tokens}; lower context_tokens to {window}"
        )
