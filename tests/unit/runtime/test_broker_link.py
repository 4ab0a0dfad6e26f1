"""A run and the broker of its fleet, with a line between them that breaks at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError

from agentrl.runtime import broker as brokers
from agentrl.runtime import broker_link as run_side
from agentrl.runtime.broker import FleetBroker
from agentrl.runtime.broker_link import BrokerLink
from agentrl.runtime.process_logs import ProcessLogs
from scheduler.slices import Account, Grant, Slot, TakeBack, Tenant

DEADLINE_S = 20
NODES = [{"NodeID": "a", "Alive": True, "Resources": {"CPU": 2.0}}]
JOB = "job"


def broken() -> ActorUnavailableError:
    return ActorUnavailableError("for a moment", None)


class Line:
    """To a broker of this process. Methods named in `lose` are done and their answers are lost;
    those in `refuse` are not done. Each of these counts once."""

    def __init__(self, broker: FleetBroker) -> None:
        self._broker = broker
        self.lose: list[str] = []
        self.refuse: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any) -> Any:
            if name == "logged":
                await asyncio.Event().wait()
            if name in self.refuse:
                self.refuse.remove(name)
                raise broken()
            answer = await getattr(self._broker, name)(*arguments)
            if name in self.lose and answer != []:
                self.lose.remove(name)
                raise broken()
            return answer

        return type(
            "Method", (), {"remote": staticmethod(lambda *a: asyncio.ensure_future(call(*a)))}
        )


class Life:
    """Of a run: its lifeline fails with whatever is put into it."""

    def __init__(self) -> None:
        self.ends: asyncio.Queue[Exception] = asyncio.Queue()
        self.lifeline = self

    async def remote(self) -> None:
        raise await self.ends.get()


class World:
    def __init__(self) -> None:
        self.broker = FleetBroker(grace_s=1000.0)
        self.line = Line(self.broker)
        self.life = Life()
        tenant = Tenant(job=JOB, wanted=2, slice_s=0.01)
        self.link = BrokerLink(tenant, self.life, ProcessLogs())
        self.running = asyncio.create_task(self.link.run())

    async def next(self, kind: type) -> Slot:
        await self.until(lambda: self.link.has_news)
        news = await self.link.next()
        assert isinstance(news, kind), news
        slot: Slot = news.slot
        return slot

    def of(self, job: str) -> Account:
        accounts = self.broker._slices.accounts(self.broker._slices._t)
        return next(each for each in accounts if each.tenant.job == job)

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not what():
                assert not self.running.done(), self.running
                self.broker._rule()
                await asyncio.sleep(0.002)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ray, "nodes", lambda: NODES)
    monkeypatch.setattr(brokers, "draining_nodes", dict)
    monkeypatch.setattr(brokers, "SETTLING_S", 0.0)
    monkeypatch.setattr(brokers, "START_S", 0.0)
    monkeypatch.setattr(brokers, "TICK_S", 1000.0)
    monkeypatch.setattr(brokers, "POLL_S", 0.05)
    monkeypatch.setattr(brokers, "RETRY_S", 0.0)
    monkeypatch.setattr(run_side, "RETRY_S", 0.0)
    world = World()
    monkeypatch.setattr(run_side, "open_broker", lambda: world.line)
    yield world
    world.running.cancel()
    for task in [*world.broker._lifelines.values(), world.broker._ticking]:
        if task is not None:
            task.cancel()


async def join_another(world: World) -> None:
    tenant = Tenant(job="other", wanted=1, slice_s=0.01)
    await world.broker.join(tenant, Life(), [], 0)


async def test_a_grant_whose_message_is_lost_comes_again(world: World) -> None:
    world.line.lose = ["listen"]
    granted = {await world.next(Grant), await world.next(Grant)}
    assert granted == {"a/cpu0", "a/cpu1"} == set(world.of(JOB).held)
    assert world.line.lose == []


async def test_who_is_asked_for_a_slot_hears_of_it_once_though_the_message_is_lost(
    world: World,
) -> None:
    granted = {await world.next(Grant), await world.next(Grant)}
    world.line.lose = ["listen"]
    await join_another(world)
    assert await world.next(TakeBack) in granted
    await world.until(lambda: world.line.lose == [])
    await asyncio.sleep(0.1)
    assert not world.link.has_news


@pytest.mark.parametrize("how", ["lose", "refuse"])
async def test_a_slot_that_is_given_back_in_a_break_is_free(world: World, how: str) -> None:
    granted = {await world.next(Grant), await world.next(Grant)}
    await join_another(world)
    asked = await world.next(TakeBack)
    getattr(world.line, how).append("give_back")
    await world.link.give_back(asked)
    await world.until(lambda: world.of("other").held == (asked,))
    assert set(world.of(JOB).held) == granted - {asked}


async def test_a_break_of_its_lifeline_is_not_the_death_of_a_run(world: World) -> None:
    granted = {await world.next(Grant), await world.next(Grant)}
    await join_another(world)
    world.life.ends.put_nowait(broken())
    await world.until(world.life.ends.empty)
    await asyncio.sleep(0.02)
    assert set(world.of(JOB).held) == granted
    world.life.ends.put_nowait(ActorDiedError())
    await world.until(lambda: len(world.of("other").held) == 1)


async def test_a_run_that_the_broker_has_forgotten_joins_anew(world: World) -> None:
    granted = {await world.next(Grant), await world.next(Grant)}
    await world.broker.leave(JOB)
    await world.until(lambda: JOB in world.broker._mail)
    assert set(world.of(JOB).held) == granted


async def test_nodes_that_cannot_be_asked_for_stay_as_they_were(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[Any]:
        raise RuntimeError("the cluster is busy")

    granted = {await world.next(Grant), await world.next(Grant)}
    monkeypatch.setattr(ray, "nodes", fail)
    await join_another(world)
    assert set(world.of(JOB).held) == granted
