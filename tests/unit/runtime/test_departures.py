"""A worker that is taken away: what it does in which order, and that it ends in time."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from agentrl.config.sections import BucketSection
from agentrl.runtime.departures import Departures
from agentrl.runtime.drains import Drains
from agentrl.runtime.notice import TerminationNotice
from agentrl.runtime.staff import WorkerSeat
from scheduler.events import Event, PreemptionNotice, Role

pytestmark = pytest.mark.timeout(60)


class Method:
    def __init__(self, function: Callable[[], Awaitable[Any]]) -> None:
        self.remote = function


class FakeWorker:
    """Writes down what is asked of it."""

    def __init__(self, done: list[str]) -> None:
        self._done = done
        self._ended = asyncio.Event()
        self.quiesce = Method(lambda: self._do("quiesce"))
        self.leave_role = Method(lambda: self._do("leave_role"))
        self.lifeline = Method(self._life)
        self.notice = Method(self._notice)
        self.node_id = Method(self._node_id)
        self.is_told = asyncio.Event()

    async def _do(self, what: str) -> None:
        self._done.append(what)

    async def _life(self) -> None:
        await self._ended.wait()
        raise RayActorError

    async def _notice(self) -> float:
        await self.is_told.wait()
        return 20.0

    async def _node_id(self) -> str:
        return "there"

    def die(self) -> None:
        self._ended.set()

    def kill(self) -> None:
        self._done.append("killed")
        self._ended.set()


class FakeTrainers:
    def __init__(self, done: list[str]) -> None:
        self._done = done

    async def leave(self, worker_id: str) -> None:
        self._done.append(f"{worker_id} leaves the trainers")


class Bench:
    def __init__(self, role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray, "kill", lambda actor: actor.kill())
        self.done: list[str] = []
        self.boundary = asyncio.Event()
        bucket = BucketSection(name="default", max_running=4)
        self.worker = FakeWorker(self.done)
        self.seat = WorkerSeat("worker-0", role, bucket, (), self.worker, generation=3)
        trainers: Any = FakeTrainers(self.done)
        self.drains = Drains(own_node="own", grace_s=30.0)
        self.departures = Departures(
            trainers=trainers, drains=self.drains, tell=self._tell, boundary=self.boundary
        )

    def _tell(self, event: Event) -> None:
        assert isinstance(event, PreemptionNotice)
        assert event.generation == 3
        self.grace_s = event.deadline_s
        self.done.append("notice")


async def test_turns_end_elsewhere_before_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Role.ROLLOUT, monkeypatch)
    await bench.departures.leave(bench.seat, 30.0)
    assert bench.done == ["notice", "quiesce", "leave_role", "killed"]


async def test_a_training_worker_leaves_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Role.TRAINING, monkeypatch)
    leaving = asyncio.create_task(bench.departures.leave(bench.seat, 30.0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.done == ["notice"]
    bench.boundary.set()
    await leaving
    assert bench.done == ["notice", "worker-0 leaves the trainers", "leave_role", "killed"]


async def test_who_leaves_takes_no_part_in_a_step_that_begins_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its state may rest already, and what it learned after that would end with its process."""
    bench = Bench(Role.TRAINING, monkeypatch)
    bench.seat.is_ready = True
    assert bench.seat.can_train
    leaving = asyncio.create_task(bench.departures.leave(bench.seat, 30.0))
    await asyncio.sleep(0)
    assert bench.done == ["notice"]
    assert not bench.seat.can_train
    bench.boundary.set()
    await leaving


async def test_who_dies_before_the_step_ends_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its slot may be wanted by another run, and without it there may be no step that ends."""
    bench = Bench(Role.TRAINING, monkeypatch)
    leaving = asyncio.create_task(bench.departures.leave(bench.seat, 600.0))
    await asyncio.sleep(0.01)
    bench.worker.die()
    async with asyncio.timeout(5.0):
        await leaving
    assert bench.done == ["notice", "killed"]


async def test_who_has_too_little_time_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Role.TRAINING, monkeypatch)
    await bench.departures.leave(bench.seat, 0.05)
    assert bench.done == ["notice", "killed"]


LEFT = ["notice", "quiesce", "leave_role", "killed"]


async def test_a_signal_to_the_process_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Role.ROLLOUT, monkeypatch)
    heeding = asyncio.create_task(bench.departures.heed(bench.seat))
    await asyncio.sleep(0.01)
    assert bench.done == []
    bench.worker.is_told.set()
    await heeding
    assert bench.done == LEFT
    assert bench.grace_s == 20.0


async def test_the_draining_of_its_machine_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Role.ROLLOUT, monkeypatch)
    heeding = asyncio.create_task(bench.departures.heed(bench.seat))
    bench.drains.note({"elsewhere": None})
    await asyncio.sleep(0.01)
    assert bench.done == []
    bench.drains.note({"there": None})
    await heeding
    assert bench.done == LEFT
    assert 20.0 < bench.grace_s <= 30.0


async def test_a_worker_on_a_slot_of_a_shared_fleet_goes_when_its_slot_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(Role.ROLLOUT, monkeypatch)
    bench.seat.slot = "there/cpu0"
    heeding = asyncio.create_task(bench.departures.heed(bench.seat))
    bench.drains.note({"there": None})
    await asyncio.sleep(0.01)
    assert bench.done == []
    heeding.cancel()


async def test_sigterm_is_a_notice_and_no_end() -> None:
    notice = TerminationNotice()
    try:
        waiting = asyncio.create_task(notice.wait())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await waiting
    finally:
        faulthandler.unregister(signal.SIGTERM)
