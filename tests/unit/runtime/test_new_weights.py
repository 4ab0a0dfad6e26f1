"""Workers that are put to work while new weights come, or that are lost then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from agentrl.config.load import load_config
from agentrl.config.sections import BucketSection
from agentrl.engine.engine import EngineError
from agentrl.record.layout import RunLayout
from agentrl.runtime.staff import Staff, Superseded, WorkerSeat
from agentrl.runtime.worker import Served
from scheduler.events import Event, Role, WeightsLoaded, WorkerReady

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
        self.failure: Exception | None = None
        """Of the next loads."""
        self.meanwhile: Callable[[], None] = lambda: None
        """Happens in each call."""
        self.become_rollout = Method(self._become_rollout)
        self.load = Method(self._load)

    async def _become_rollout(self, _secret: str) -> Served:
        await self._load(self._store.version)
        return Served(URL, self.version)

    async def _load(self, version: int) -> None:
        self.meanwhile()
        if self.failure is not None:
            raise self.failure
        if self.num_to_come:
            self._store.version, self.num_to_come = self._store.version + 1, self.num_to_come - 1
        self.version = version


class Bench:
    def __init__(self) -> None:
        self.told: list[Event] = []
        self.on_announced: Callable[[], None] = lambda: None
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
            follow=lambda name, actor: None,
        )

    async def _announce(self, seat: WorkerSeat) -> None:
        assert seat.url == URL
        self.on_announced()

    def replace(self) -> None:
        """The process in the seat is lost, and another one starts there."""
        self.seat.generation, self.seat.url = self.seat.generation + 1, ""
        self.seat.actor = FakeWorker(self.store)


async def test_weights_that_age_while_a_worker_starts_are_loaded_before_it_is_ready() -> None:
    bench = Bench()
    bench.worker.num_to_come = 2
    await bench.staff.put_to_work(bench.seat)
    assert bench.store.version == bench.worker.version == bench.seat.version == 3
    (ready,) = bench.told
    assert isinstance(ready, WorkerReady)
    assert ready.policy_version == 3


async def test_new_weights_are_told_of_where_they_were_loaded() -> None:
    bench = Bench()
    bench.seat.url = URL
    await bench.staff.load(bench.seat, 2)
    assert bench.worker.version == bench.seat.version == 2
    (loaded,) = bench.told
    assert isinstance(loaded, WeightsLoaded)
    assert loaded.version == 2


@pytest.mark.parametrize(
    "failure",
    [
        RayActorError(),
        RayTaskError("load", "", EngineError("serves no rollout any more")).as_instanceof_cause(),
    ],
)
async def test_who_serves_no_more_when_new_weights_come_gets_none(failure: Exception) -> None:
    """Such as a worker on its way to another role, which left while the weights travelled."""
    bench = Bench()
    bench.seat.url, bench.worker.failure = URL, failure
    await bench.staff.load(bench.seat, 2)
    assert bench.told == []
    assert bench.seat.version == 0


async def test_what_cannot_be_loaded_is_no_loss() -> None:
    bench = Bench()
    refused = RayTaskError("load", "lacks a weight", ValueError()).as_instanceof_cause()
    bench.seat.url, bench.worker.failure = URL, refused
    with pytest.raises(ValueError, match="lacks a weight"):
        await bench.staff.load(bench.seat, 2)


async def test_who_is_lost_while_the_runners_are_told_of_it_is_not_reported() -> None:
    """The next process in the seat is not ready yet, and must not be taken for it."""
    bench = Bench()
    bench.on_announced = bench.replace
    with pytest.raises(Superseded):
        await bench.staff.put_to_work(bench.seat)
    assert bench.told == []
    assert not bench.seat.is_ready


async def test_what_a_lost_process_has_served_is_not_taken_for_its_successors() -> None:
    bench = Bench()
    bench.worker.meanwhile = bench.replace
    with pytest.raises(Superseded):
        await bench.staff.put_to_work(bench.seat)
    assert bench.told == []
    assert bench.seat.url == ""


async def test_what_a_lost_process_has_loaded_is_not_taken_for_its_successors() -> None:
    bench = Bench()
    bench.seat.url, bench.worker.meanwhile = URL, bench.replace
    await bench.staff.load(bench.seat, 2)
    assert bench.told == []
    assert bench.seat.version == 0
