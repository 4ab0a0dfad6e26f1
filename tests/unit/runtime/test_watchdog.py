import asyncio

import pytest

from agentrl.runtime.failures import StalledRun
from agentrl.runtime.watchdog import Watchdog


async def no_details() -> list[str]:
    return ["runner-0: attempt g1-3 in tool sh, for 9 s"]


async def test_a_run_that_stands_still_ends_and_names_what_it_waited_for() -> None:
    now = 0.0
    dog = Watchdog(stall_timeout_s=0.05, clock=lambda: now, details=no_details)
    with dog.waiting("batch 3 (4 of 8 groups)"):
        now = 10.0
        with (
            dog.waiting("a younger wait"),
            pytest.raises(StalledRun) as stalled,
        ):
            await dog.watch()
    lines = str(stalled.value).splitlines()
    assert "batch 3 (4 of 8 groups), for 10 s" in lines[1]
    assert "a younger wait" in lines[2]
    assert "attempt g1-3" in lines[3]


async def test_progress_keeps_it_alive_and_ended_waits_are_forgotten() -> None:
    now = 0.0
    dog = Watchdog(stall_timeout_s=5.0, clock=lambda: now, details=no_details)
    with dog.waiting("x"):
        pass
    assert dog.oldest() == []
    watching = asyncio.create_task(dog.watch())
    await asyncio.sleep(0)
    now = 4.0
    dog.progressed()
    now = 8.0
    await asyncio.sleep(0)
    assert not watching.done()
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
