"""A run has a coordinator that answers: one that lives and does not is ended, and has a successor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import ActorUnschedulableError, RayActorError

from agentrl.record.layout import RunLayout
from agentrl.runtime.beside import beside
from agentrl.runtime.failures import RunFailed
from agentrl.runtime.keeper import CoordinatorKeeper
from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.routing.least_load import LeastLoad

DEADLINE_S = 60


class Method:
    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self.remote = function


class FakeCoordinator:
    """Stopped once it has been asked to open its log, or once it has done so, or never."""

    def __init__(self, stops: str = "") -> None:
        self._stops = stops
        self.is_killed = asyncio.Event()
        self.was_opened = asyncio.Event()
        self.num_opened = 0
        self.open, self.ready = Method(self._open), Method(self._ready)
        self.lifeline = Method(self._lifeline)

    async def _open(self) -> None:
        self.num_opened += 1
        self.was_opened.set()
        if self._stops == "opening":
            await self._lifeline()

    async def _ready(self) -> None:
        if self._stops:
            await self._lifeline()

    async def _lifeline(self) -> None:
        await self.is_killed.wait()
        raise RayActorError


def make_keeper(folder: Path, *, on_lost: Callable[[], None]) -> CoordinatorKeeper:
    return CoordinatorKeeper(
        Scheduler(
            routing=LeastLoad(),
            admission=CapacityAdmission(groups_per_step=1, num_steps=1, max_running_groups=1),
        ),
        RunLayout(folder),
        tick_s=1.0,
        silence_timeout_s=0.05,
        start_timeout_s=0.05,
        on_lost=on_lost,
        follow=lambda name, actor: None,
    )


@pytest.mark.parametrize("stops", ["opening", "later"])
async def test_a_coordinator_that_no_longer_answers_is_ended_and_has_a_successor(
    stops: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "kill", lambda killed: killed.is_killed.set())
    stopped, healthy = FakeCoordinator(stops), FakeCoordinator()
    to_start, num_lost = [stopped, healthy], []
    monkeypatch.setattr(CoordinatorKeeper, "_start", lambda keeper: to_start.pop(0))
    keeper = make_keeper(tmp_path, on_lost=lambda: num_lost.append(1))

    async def until_healthy() -> None:
        await healthy.was_opened.wait()
        await keeper.ready()
        await asyncio.sleep(0.2)

    async with asyncio.timeout(DEADLINE_S):
        await beside(until_healthy(), keeper.run())
    assert stopped.is_killed.is_set()
    assert not healthy.is_killed.is_set(), "it was left alone while it answered"
    assert (stopped.num_opened, healthy.num_opened, len(num_lost)) == (1, 1, 1)


async def test_one_that_has_nowhere_to_start_ends_the_run_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine is being taken away, and Ray places nothing there any more."""

    async def has_no_place() -> None:
        raise ActorUnschedulableError("The node is draining")

    lost, without_place = FakeCoordinator(), FakeCoordinator()
    lost.is_killed.set()
    without_place.open = Method(has_no_place)
    to_start = [lost, without_place]
    monkeypatch.setattr(ray, "kill", lambda killed: None)
    monkeypatch.setattr(CoordinatorKeeper, "_start", lambda keeper: to_start.pop(0))
    keeper = make_keeper(tmp_path, on_lost=lambda: None)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(RunFailed, match=r"machine.* is being taken away.*--resume"):
            await keeper.run()
