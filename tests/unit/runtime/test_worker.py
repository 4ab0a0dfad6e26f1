"""A worker's process, without Ray: its roles and what becomes of calls that come too late."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.config.load import load_config
from agentrl.engine.engine import EngineError, GenerateRequest
from agentrl.engine.remote_client import RemoteEngine
from agentrl.models.load import load_model
from agentrl.runtime.parameters import Published
from agentrl.runtime.worker import Worker

SMALL = ("model.hidden_size=32", "model.num_layers=1", "runtime.slots=4")
CONFIG = load_config(Path(__file__).parents[3] / "configs" / "quickstart.yaml", SMALL)
TURN = GenerateRequest(request_id="a", session_id="a", ids=[1, 2], max_new_tokens=5)
pytestmark = pytest.mark.timeout(60)


class FakeStore:
    """Its weights have come when `has_come` is set."""

    def __init__(self) -> None:
        self.has_come = asyncio.Event()
        self.pull = self
        self.weights: dict[str, Any] = {}

    async def remote(self, version: int | None) -> Published:
        refs: list[Any] = [self._weights()]
        return Published(version or 0, refs)

    async def _weights(self) -> dict[str, Any]:
        await self.has_come.wait()
        return self.weights


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def worker(store: FakeStore) -> Iterator[Worker]:
    yield Worker(CONFIG, store, cores=(), num_threads=1)
    faulthandler.unregister(signal.SIGTERM)


async def test_a_worker_tells_what_broke_the_engine_that_it_serves(
    worker: Worker, store: FakeStore
) -> None:
    parameters = load_model(CONFIG.model, seed=0).model.named_parameters()
    store.weights = {name: tensor.detach().numpy() * np.nan for name, tensor in parameters}
    store.has_come.set()
    served = await worker.become_rollout("secret")
    engine = await RemoteEngine.connect(served.url, "secret")
    telling = asyncio.create_task(worker.broken())
    with pytest.raises(EngineError, match="not finite"):
        await anext(engine.generate(TURN))
    assert "not finite" in await telling
    await engine.close()
    await worker.leave_role()


async def test_weights_that_come_after_its_role_has_ended_are_refused(
    worker: Worker, store: FakeStore
) -> None:
    loading = asyncio.create_task(worker.load(3))
    await worker.leave_role()
    store.has_come.set()
    with pytest.raises(EngineError, match="version 3: no policy is served here any more"):
        await loading
