"""What a shared fleet counts as slots."""

from __future__ import annotations

from typing import Any

from agentrl.runtime.broker import SlotPlace, slots_of


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
