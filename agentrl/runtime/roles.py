"""What a worker does while it serves rollout: built when the role begins, dropped when it ends.

A plain object without Ray: an engine, which has a thread of its own, behind a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

import torch

from agentrl.config.run import RunConfig
from agentrl.engine.engine import EngineError, EngineStats, WeightSwap, WeightUpdate
from agentrl.engine.remote import EngineServer
from agentrl.engine.swap_cost import SwapCost
from agentrl.engine.torch_engine import TorchEngine
from agentrl.models.load import load_model

DRAIN_POLL_S = 0.02
OnBroken = Callable[[EngineError], None]
"""Called when the engine that is served has broken."""


class ServedEngine:
    """An engine behind a server; what every serving role comes to. Made by `open`."""

    def __init__(self, engine: TorchEngine, server: EngineServer, url: str) -> None:
        self._engine = engine
        self._server = server
        self.url = url

    @classmethod
    async def open(cls, engine: TorchEngine, *, host: str, secret: str) -> Self:
        server = EngineServer(engine, host=host, token=secret)
        port = await server.start()
        return cls(engine, server, f"ws://{host}:{port}")

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def drain(self) -> None:
        """Return when no turn runs here any more; whoever placed them sees to that."""
        while True:
            stats = await self._engine.stats()
            if not (stats.running or stats.waiting):
                return
            await asyncio.sleep(DRAIN_POLL_S)

    async def close(self) -> None:
        await self._server.close()
        await self._engine.close()


class RolloutContext(ServedEngine):
    """Serves the policy's weights, of one version after the other."""

    _swap = WeightSwap.CONTINUE

    @classmethod
    async def start(
        cls,
        config: RunConfig,
        secret: str,
        host: str,
        version: int,
        weights: WeightUpdate,
        on_broken: OnBroken,
    ) -> Self:
        # beside the loop, which goes on answering: a large model takes minutes
        loaded = await asyncio.to_thread(load_model, config.model, seed=config.seed)
        engine = TorchEngine(
            loaded.model,
            num_slots=config.runtime.slots,
            context_tokens=config.rollout.context_tokens,
            device=device(),
            on_broken=on_broken,
        )
        await engine.load_weights(version, weights, swap=WeightSwap.REPREFILL)
        context = await cls.open(engine, host=host, secret=secret)
        context._swap = WeightSwap(config.runtime.weight_update)
        return context

    async def load(self, version: int, weights: WeightUpdate) -> None:
        await self._engine.load_weights(version, weights, swap=self._swap)

    async def take_swap_cost(self) -> SwapCost:
        """Of the swaps since the last call."""
        return await self._engine.take_swap_cost()


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
