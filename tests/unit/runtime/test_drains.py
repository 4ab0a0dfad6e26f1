"""What is known of machines that are taken away, and who is told."""

from __future__ import annotations

import asyncio
import time

import pytest

from agentrl.runtime.drains import Drains


def drains() -> Drains:
    return Drains(own_node="own", grace_s=30.0)


async def test_who_waits_for_a_node_is_told_what_is_left_to_it() -> None:
    known = drains()
    waiting = asyncio.create_task(known.of("a"))
    known.note({"b": None})
    await asyncio.sleep(0)
    assert not waiting.done()
    known.note({"b": None, "a": time.time() + 100.0})
    assert 90.0 < await waiting <= 100.0
    assert 90.0 < await known.of("a") <= 100.0, "one that asks later is told too"
    left_s = known.left_s("a")
    assert left_s is not None
    assert 90.0 < left_s <= 100.0
    assert known.left_s("c") is None


async def test_a_node_that_goes_at_no_particular_time_has_the_usual_grace() -> None:
    known = drains()
    known.note({"a": None})
    assert 20.0 < await known.of("a") <= 30.0


async def test_a_time_that_has_passed_leaves_nothing() -> None:
    known = drains()
    known.note({"a": time.time() - 5.0})
    assert await known.of("a") == 0.0


async def test_processes_on_the_driver_s_machine_stay_and_the_driver_is_told() -> None:
    known = drains()
    waiting = asyncio.create_task(known.of("own"))
    known.note({"own": None})
    assert 20.0 < await known.of_the_driver() <= 30.0
    assert known.left_s("own") is None
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, 0.01)
