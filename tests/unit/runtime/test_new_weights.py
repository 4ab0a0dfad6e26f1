"""Workers that are put to work while new weights come, or that lose their engine then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.config.sections import BucketSection
from agentrl.record.layout import RunLayout
from agentrl.runtime.staff import Staff, WorkerSeat
from agentrl.runtime.worker import Served
from scheduler.events import Event, Role, WorkerReady

CONFIG = load_config(Path(__file__).parents[3] / "configs" / "quickstart.yaml")
URL = "ws://there:1"
pytestmark = pytest.mark.timeout(60)


class Method:
    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self.remote = function


class FakeStore:
    def __init__(self) -> None:
        self.version = 1
        self.newest = Method(self._newest)

    async def _newest(self) -> int:
        return self.version


class FakeWorker:
    """While it starts or loads, others publish `num_to_come` times, once in each call."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self.version = 0
        self.num_to_come = 0
        self.become_rollout = Method(self._become_rollout)
        self.load = Method(self._load)

    async def _become_rollout(self, _secret: str) -> Served:
        await self._load(self._store.version)
        return Served(URL, self.version)

    async def _load(self, version: int) -> None:
        if self.num_to_come:
            self._store.version, self.num_to_come = self._store.version + 1, self.num_to_come - 1
        self.version = version


class Bench:
    def __init__(self) -> None:
        self.told: list[Event] = []
        self.store = FakeStore()
        self.worker = FakeWorker(self.store)
        bucket = BucketSection(name="default", max_running=4)
        self.seat = WorkerSeat("worker-0", Role.ROLLOUT, bucket, (), self.worker)
        self.staff = Staff(
            config=CONFIG,
            layout=RunLayout(Path("nowhere")),
            store=self.store,
            secret="secret",
            tell=self.told.append,
            announce=self._announce,
            waiting=lambda _: nullcontext(),
            on_replaced=lambda: None,
        )

    async def _announce(self, seat: WorkerSeat) -> None:
        assert seat.url == URL


async def test_weights_that_age_while_a_worker_starts_are_loaded_before_it_is_ready() -> None:
    bench = Bench()
    bench.worker.num_to_come = 2
    await bench.staff.put_to_work(bench.seat)
    assert bench.store.version == bench.worker.version == bench.seat.version == 3
    (ready,) = bench.told
    assert isinstance(ready, WorkerReady)
    assert ready.policy_version == 3
