"""An inference engine inside this process: continuous batching over a Hugging Face model.

The decode loop is plain synchronous code in a thread of its own; `TorchEngine` is its asynchronous
face. Callers post commands, which the thread runs between two passes over the model, and each pass
hands all its tokens to the event loop in one call.

The engine owns the model it is given: it moves it to `device`, and `load_weights` writes into it.
How many cores a pass uses is the process's own choice (`torch.set_num_threads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count

import torch
from torch import nn
from transformers import PreTrainedModel

from agentrl.engine.batcher import Batcher
from agentrl.engine.decode_thread import DecodeThread
from agentrl.engine.engine import (
    EngineError,
    EngineStats,
    FinishReason,
    GenerateRequest,
    RequestError,
    TokenChunk,
    WeightSwap,
    WeightUpdate,
)
from agentrl.engine.fast_forward import FastForward, has_fast_forward
from agentrl.engine.forward import Forward, StockForward, check_supported
from agentrl.engine.kv_cache import KVCache
from agentrl.engine.stream import TokenStream
from agentrl.engine.swap_cost import SwapCost
from agentrl.engine.turn import Progress
from agentrl.engine.weights import load_into

_DRAIN_POLL_S = 0.005


class TorchEngine:
    """Implements `Engine`."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        num_slots: int,
        context_tokens: int,
        device: str | torch.device = "cpu",
        prefill_tokens: int = 1024,
        policy_version: int = 0,
        on_broken: Callable[[EngineError], None] | None = None,
    ) -> None:
        """`prefill_tokens` is the most that one pass computes beside decoding. `on_broken` is
        called when a pass fails: the engine serves nobody any more."""
        check_supported(model, context_tokens)
        nn.Module.to(model, torch.device(device))
        model.eval()
        cache = KVCache(
            num_slots=num_slots,
            context_tokens=context_tokens,
            dtype=model.dtype,
            device=model.device,
        )
        self._model = model
        self._context_tokens = context_tokens
        self._vocab_size: int = model.config.vocab_size
        self._batcher = Batcher(
            make_forward(model, cache),
            cache,
            prefill_tokens=prefill_tokens,
            policy_version=policy_version,
        )
        self._on_broken = on_broken
        self._is_closed = False
        self._streams: dict[str, TokenStream] = {}
        self._prefill_ids = count()
        self._thread = DecodeThread(self._batcher, receive=self._receive, fail=self._fail)

    # ------------------------------------------------------------------ Engine

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        self._check(request)
        if request.max_new_tokens == 0:
            reason = FinishReason.LENGTH
            yield TokenChunk(ids=(), logprobs=(), policy_versions=(), finish_reason=reason)
            return
        stream = self._submit(request)
        try:
            while True:
                chunk = await stream.next_chunk()
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            self._abandon(request.request_id, stream)

    async def prefill(self, session_id: str, ids: Sequence[int]) -> None:
        request = GenerateRequest(
            request_id=f"prefill {next(self._prefill_ids)}",
            session_id=session_id,
            ids=ids,
            max_new_tokens=0,
        )
        self._check(request)
        stream = self._submit(request)
        try:
            await stream.next_chunk()
        finally:
            self._abandon(request.request_id, stream)

    async def abort(self, request_id: str) -> None:
        await self._thread.call(lambda: self._batcher.abort(request_id))

    async def abort_all(self) -> int:
        return await self._thread.call(self._batcher.abort_all)

    async def pause(self) -> None:
        await self._thread.set_paused(True)

    async def resume(self) -> None:
        await self._thread.set_paused(False)

    async def load_weights(self, version: int, weights: WeightUpdate, *, swap: WeightSwap) -> None:
        def load() -> None:
            self._batcher.change_weights(
                lambda: load_into(self._model, weights),
                version,
                keep_cache=swap is WeightSwap.CONTINUE,
            )

        if swap is not WeightSwap.DRAIN:
            return await self._thread.call(load)
        await self._thread.call(self._batcher.hold)
        try:
            await self._until_none_runs()
            await self._thread.call(load)
        finally:
            await self._thread.call(self._batcher.admit)

    async def take_swap_cost(self) -> SwapCost:
        """Of the swaps since the last call."""
        return await self._thread.call(self._batcher.take_swap_cost)

    async def _until_none_runs(self) -> None:
        while True:
            if not (await self.stats()).running:
                return
            await asyncio.sleep(_DRAIN_POLL_S)

    async def release(self, session_id: str) -> None:
        await self._thread.call(lambda: self._batcher.release(session_id))

    async def stats(self) -> EngineStats:
        return await self._thread.call(self._batcher.stats)

    async def close(self) -> None:
        """Abort what runs and end the thread."""
        self._is_closed = True
        await self._thread.close()

    # ------------------------------------------------------------------ requests

    def _check(self, request: GenerateRequest) -> None:
        ids, sampling = request.ids, request.sampling
        name = f"request {request.request_id}"
        if request.request_id in self._streams:
            raise RequestError(f"{name}: this id is in use; ids are unique per call")
        if not len(ids):
            raise RequestError(f"{name}: no ids; a context has at least one")
        if not 0 <= min(ids) <= max(ids) < self._vocab_size:
            raise RequestError(
                f"{name}: ids from {min(ids)} to {max(ids)}, "
                f"the vocabulary has 0 to {self._vocab_size - 1}"
            )
        if request.max_new_tokens < 0:
            raise RequestError(f"{name}: max_new_tokens is {request.max_new_tokens}, wanted >= 0")
        if len(ids) + request.max_new_tokens > self._context_tokens:
            raise RequestError(
                f"{name}: {len(ids)} ids and {request.max_new_tokens} new tokens exceed the "
                f"context of {self._context_tokens}"
            )
        if not (sampling.temperature >= 0 and 0 < sampling.top_p <= 1 and sampling.top_k >= 0):
            raise RequestError(
                f"{name}: wanted temperature >= 0, 0 < top_p <= 1, top_k >= 0, got {sampling}"
            )

    def _submit(self, request: GenerateRequest) -> TokenStream:
        stream = self._streams[request.request_id] = TokenStream()
        self._thread.post(lambda: self._batcher.submit(request))
        return stream

    def _abandon(self, request_id: str, stream: TokenStream) -> None:
        """Abort a request whose reader went away."""
        if not stream.is_finished:
            del self._streams[request_id]
            self._thread.post(lambda: self._batcher.abort(request_id))

    def _receive(self, progress: Sequence[Progress]) -> None:
        for request_id, ids, logprobs, policy_versions, finish_reason in progress:
            # Its reader may have gone away meanwhile.
            if stream := self._streams.get(request_id):
                stream.push(ids, logprobs, policy_versions, finish_reason)
                if finish_reason is not None:
                    del self._streams[request_id]

    def _fail(self, error: EngineError) -> None:
        if self._on_broken is not None and not self._is_closed:
            self._on_broken(error)
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()


def make_forward(model: PreTrainedModel, cache: KVCache) -> Forward:
    """The hand-written pass where it exists, else the model's own."""
    return FastForward(model, cache) if has_fast_forward(model) else StockForward(model, cache)
