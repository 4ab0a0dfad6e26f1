"""What a shared fleet counts as slots, and whom it lends them to."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from agentrl.runtime import broker as fleet_broker
from agentrl.runtime.broker import FleetBroker, SlotPlace, slots_of
from scheduler.slices import Grant, Tenant


def node(name: str, *, is_alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": is_alive, "Resources": resources}


def test_a_slot_is_a_core_of_a_living_node() -> None:
    nodes = [node("a", CPU=2.0, memory=9.0), node("b", CPU=1.0), node("c", CPU=4.0, is_alive=False)]
    assert slots_of(nodes) == {"a/cpu0", "a/cpu1", "b/cpu0"}


def test_where_there_are_accelerators_cores_are_none() -> None:
    nodes = [node("a", CPU=64.0), node("b", CPU=64.0, GPU=2.0)]
    assert slots_of(nodes) == {"b/gpu0", "b/gpu1"}


def test_a_slot_says_where_it_is() -> None:
    assert SlotPlace.of("a/cpu1") == SlotPlace("a", None)
    assert SlotPlace.of("b/gpu1") == SlotPlace("b", 1)


async def test_a_slot_is_not_lent_again_when_it_is_given_back_because_its_machine_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run may hear of that before the broker has looked."""
    draining: dict[str, float | None] = {}
    monkeypatch.setattr(ray, "nodes", lambda: [node("a", CPU=1.0)])
    monkeypatch.setattr(fleet_broker, "draining_nodes", lambda: draining)
    monkeypatch.setattr(fleet_broker, "SETTLING_S", 0.0)
    monkeypatch.setattr(fleet_broker, "TICK_S", 60.0)
    monkeypatch.setattr(fleet_broker, "POLL_S", 0.05)
    lifeline = SimpleNamespace(lifeline=SimpleNamespace(remote=asyncio.Event().wait))
    broker = FleetBroker()
    tenant = Tenant(job="run", weight=1.0, wanted=1, at_least=1, slice_s=5.0)
    await broker.join(tenant, lifeline, [], 0)
    assert await broker.listen("run", 0) == [Grant(job="run", slot="a/cpu0", is_warm=False)]
    draining["a"] = None
    await broker.give_back("run", "a/cpu0")
    assert await broker.listen("run", 1) == []


async def test_what_was_seen_of_the_machines_before_is_not_taken_for_what_is_seen_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One look may take long, and another one that began later must not be undone by it."""
    draining: dict[str, float | None] = {}
    is_slow, has_looked, may_answer = threading.Event(), threading.Event(), threading.Event()

    def look() -> dict[str, float | None]:
        seen = dict(draining)
        if is_slow.is_set():
            is_slow.clear()
            has_looked.set()
            may_answer.wait(10.0)
        return seen

    monkeypatch.setattr(ray, "nodes", lambda: [node("a", CPU=1.0)])
    monkeypatch.setattr(fleet_broker, "draining_nodes", look)
    monkeypatch.setattr(fleet_broker, "SETTLING_S", 0.0)
    monkeypatch.setattr(fleet_broker, "TICK_S", 60.0)
    monkeypatch.setattr(fleet_broker, "POLL_S", 0.05)
    lifeline = SimpleNamespace(lifeline=SimpleNamespace(remote=asyncio.Event().wait))
    broker = FleetBroker()
    first, second = (
        Tenant(job=job, weight=1.0, wanted=1, at_least=1, slice_s=5.0) for job in ("one", "two")
    )
    await broker.join(first, lifeline, [], 0)
    assert await broker.listen("one", 0) == [Grant(job="one", slot="a/cpu0", is_warm=False)]
    is_slow.set()
    joining = asyncio.create_task(broker.join(second, lifeline, [], 0))
    await asyncio.to_thread(has_looked.wait, 10.0)
    draining["a"] = None
    giving_back = asyncio.create_task(broker.give_back("one", "a/cpu0"))
    await asyncio.wait({giving_back}, timeout=0.2)
    may_answer.set()
    await asyncio.gather(joining, giving_back)
    assert await broker.listen("one", 1) == []
    assert await broker.listen("two", 0) == []
