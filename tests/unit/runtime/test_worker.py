"""A worker's process, without Ray: its roles and what becomes of calls that come too late."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.engine.engine import EngineError
from agentrl.runtime.parameters import Published
from agentrl.runtime.worker import Worker

CONFIG = load_config(Path(__file__).parents[3] / "configs" / "quickstart.yaml")
pytestmark = pytest.mark.timeout(60)


class FakeStore:
    """Its weights have come when `has_come` is set."""

    def __init__(self) -> None:
        self.has_come = asyncio.Event()
        self.pull = self

    async def remote(self, version: int | None) -> Published:
        refs: list[Any] = [self._weights()]
        return Published(version or 0, refs)

    async def _weights(self) -> dict[str, Any]:
        await self.has_come.wait()
        return {}


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def worker(store: FakeStore) -> Iterator[Worker]:
    yield Worker(CONFIG, store, cores=(), num_threads=1)
    faulthandler.unregister(signal.SIGTERM)


async def test_weights_that_come_after_its_role_has_ended_are_refused(
    worker: Worker, store: FakeStore
) -> None:
    loading = asyncio.create_task(worker.load(3))
    await worker.leave_role()
    store.has_come.set()
    with pytest.raises(EngineError, match="version 3: no policy is served here any more"):
        await loading
