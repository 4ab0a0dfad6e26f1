"""A deadline that stands still has as much left afterwards as before, and no more."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from agentrl.rollout.standstill import standing_still


async def test_what_was_left_is_left_afterwards() -> None:
    async def work() -> None:
        async with asyncio.timeout(1.0) as deadline:
            with standing_still(deadline):
                await asyncio.sleep(1.2)
            assert not deadline.expired()
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await work()


async def test_one_who_gives_up_waiting_leaves_the_deadline_running() -> None:
    async def work() -> None:
        async with asyncio.timeout(0.5) as deadline:
            with suppress(KeyError), standing_still(deadline):
                raise KeyError
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await work()


async def test_a_deadline_that_has_passed_stays_so() -> None:
    async def work() -> None:
        async with asyncio.timeout(60) as deadline:
            deadline.reschedule(0.0)
            try:
                await asyncio.sleep(60)
            finally:
                with standing_still(deadline):
                    assert deadline.expired()

    with pytest.raises(TimeoutError):
        await work()
