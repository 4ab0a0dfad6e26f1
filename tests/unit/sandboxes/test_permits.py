"""Permits: all or none, first come first served, and nothing is lost by a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from sandboxes.permits import Permits
from sandboxes.spec import SandboxSpec

SPEC = SandboxSpec(memory_bytes=100)


def make(max_boxes: int, max_memory_bytes: float = float("inf")) -> Permits:
    return Permits(max_boxes=max_boxes, max_memory_bytes=max_memory_bytes)


async def test_a_group_gets_all_or_waits() -> None:
    permits = make(4)
    await permits.take([SPEC] * 3)
    group = asyncio.create_task(permits.take([SPEC] * 2))
    await asyncio.sleep(0)
    assert (permits.num_boxes, permits.num_waiting) == (3, 2)
    permits.give_back(SPEC)
    await group
    assert permits.num_boxes == 4


async def test_nobody_overtakes_who_waits() -> None:
    permits = make(2)
    await permits.take([SPEC])
    group = asyncio.create_task(permits.take([SPEC] * 2))
    await asyncio.sleep(0)
    assert not permits.take_now(SPEC)
    single = asyncio.create_task(permits.take([SPEC]))
    permits.give_back(SPEC)
    await group
    assert not single.done()
    permits.give_back(SPEC)
    await single


async def test_memory_counts_too() -> None:
    permits = make(10, max_memory_bytes=250)
    assert permits.take_now(SPEC)
    assert permits.take_now(SPEC)
    assert not permits.take_now(SPEC)
    permits.give_back(SPEC)
    assert permits.take_now(SPEC)


@pytest.mark.parametrize(("boxes", "memory"), [(2, float("inf")), (9, 200)])
async def test_what_can_never_fit_is_refused(boxes: int, memory: float) -> None:
    with pytest.raises(ValueError, match=r"raise sandbox\.max_open"):
        await make(boxes, memory).take([SPEC] * 3)


async def test_a_cancelled_wish_frees_the_way() -> None:
    permits = make(2)
    await permits.take([SPEC])
    group = asyncio.create_task(permits.take([SPEC] * 2))
    single = asyncio.create_task(permits.take([SPEC]))
    await asyncio.sleep(0)
    group.cancel()
    await single
    assert (permits.num_boxes, permits.num_waiting) == (2, 0)


async def test_a_wish_granted_while_it_is_cancelled_is_given_back() -> None:
    permits = make(1)
    await permits.take([SPEC])
    wish = asyncio.create_task(permits.take([SPEC]))
    await asyncio.sleep(0)
    permits.give_back(SPEC)
    wish.cancel()
    await asyncio.gather(wish, return_exceptions=True)
    assert permits.num_boxes == 0
