"""At its deadline a command ends with all that it started, and nothing else does."""

from __future__ import annotations

import asyncio
import time

import pytest
from observing import SPEC, Sleepers, until

from sandboxes import Sandbox, SandboxBackend

ESCAPES = {
    "same group": "{sleep} & {sleep}",
    "setsid": "setsid {sleep} & {sleep}",
    "double fork": "(setsid sh -c '{sleep} & {sleep} &' &) ; {sleep}",
    "cleared environment": "nohup env -i setsid {sleep} > /dev/null 2>&1 & {sleep}",
    "ignores TERM": "trap '' TERM HUP INT; {sleep} & {sleep}",
    "stopped": "{sleep} & kill -STOP $!; {sleep}",
    "leader gone": "setsid {sleep} & setsid {sleep} & exec sh -c 'wait; {sleep}'",
}


@pytest.mark.parametrize("escape", ESCAPES)
async def test_nothing_outlives_its_deadline(box: Sandbox, sleepers: Sleepers, escape: str) -> None:
    command = ESCAPES[escape].format(sleep=sleepers.command)
    started = time.monotonic()
    result = await box.exec(command, timeout_s=0.5)
    assert time.monotonic() - started < 0.5 + 2
    assert result.timed_out
    assert result.rc == 137
    assert sleepers.count() == 0
    assert (await box.exec(["echo", "alive"])).out == b"alive\n"


@pytest.mark.parametrize("escape", ["setsid", "double fork", "cleared environment"])
async def test_the_count_would_see_survivors(box: Sandbox, sleepers: Sleepers, escape: str) -> None:
    """The control of the test above: what is only orphaned, not killed, is counted."""
    background = ESCAPES[escape].format(sleep=sleepers.command).rpartition(sleepers.command)[0]
    result = await box.exec(background + "true")
    assert result.ok
    await until(lambda: sleepers.count() >= 1)
    await box.close()
    assert sleepers.count() == 0


@pytest.mark.slow
async def test_siblings_are_unharmed(box: Sandbox, sleepers: Sleepers) -> None:
    sibling = asyncio.create_task(box.exec("sleep 1.5; echo unharmed"))
    await box.exec(f"{sleepers.command} > /dev/null 2>&1 &")
    assert (await box.exec(f"setsid {sleepers.command}", timeout_s=0.3)).timed_out
    await until(lambda: sleepers.count() == 1)  # what an earlier command left in the background
    assert (await sibling).out == b"unharmed\n"


@pytest.mark.slow
async def test_what_a_sibling_left_is_unharmed(box: Sandbox, sleepers: Sleepers) -> None:
    """The other way round: the one that is killed was there first."""
    late = asyncio.create_task(box.exec(f"setsid {sleepers.command} & sleep 9", timeout_s=1.5))
    await until(lambda: sleepers.count() == 1)
    await box.exec("sleep 30 > /dev/null 2>&1 & echo $! > pid")
    sibling = asyncio.create_task(box.exec("sleep 2; echo unharmed"))
    assert (await late).timed_out
    assert sleepers.count() == 0
    assert (await box.exec("kill -0 $(cat pid)")).ok  # what a command left in the background
    assert (await sibling).out == b"unharmed\n"
    assert (await box.exec("kill -9 $(cat pid)")).ok
    for _ in range(3):  # what is left of a command does not stand in the way of others
        assert (await box.exec("setsid sleep 5 & exit 3")).rc == 3


async def test_a_leader_may_close_its_output_and_go_on(box: Sandbox) -> None:
    result = await box.exec("exec > /dev/null 2>&1; sleep 0.3; exit 7")
    assert result.rc == 7


async def test_a_quick_death_by_signal_is_no_time_out(box: Sandbox) -> None:
    result = await box.exec("kill -TERM $$", timeout_s=10)
    assert (result.rc, result.timed_out) == (143, False)


async def test_output_until_the_deadline_is_kept(box: Sandbox) -> None:
    result = await box.exec("echo before; sleep 20", timeout_s=0.5)
    assert (result.out, result.timed_out) == (b"before\n", True)


@pytest.mark.slow
async def test_a_background_child_with_the_pipes_does_not_hold_the_call(
    box: Sandbox, sleepers: Sleepers
) -> None:
    started = time.monotonic()
    result = await box.exec(f"(sleep 1; echo late) & {sleepers.command} & echo done")
    assert time.monotonic() - started < 1
    assert (result.rc, result.out, result.timed_out) == (0, b"done\n", False)
    await asyncio.sleep(1)
    assert (await box.exec(["echo", "next"])).out == b"next\n"
    await until(lambda: sleepers.count() == 1)


async def test_a_background_server_may_go_on_printing(box: Sandbox) -> None:
    """Its pipe stays open after the call, so it is not killed by its own log line."""
    await box.exec("(sleep 0.6; echo log line; echo still here > proof) & true")
    for _ in range(100):
        if (await box.exec("cat proof 2>/dev/null")).out:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the background process died while printing")


async def test_a_cancelled_call_is_killed_in_the_box(box: Sandbox, sleepers: Sleepers) -> None:
    call = asyncio.create_task(box.exec(f"setsid {sleepers.command} & {sleepers.command}"))
    await until(lambda: sleepers.count() == 2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: sleepers.count() == 0)
    assert (await box.exec(["true"])).ok


@pytest.mark.slow
async def test_kills_that_follow_at_once_are_not_lost(box: Sandbox, sleepers: Sleepers) -> None:
    """A cancellation may reach boxd before the supervisor that it is meant for has started."""
    for _ in range(20):
        call = asyncio.create_task(box.exec(sleepers.command))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await until(lambda: sleepers.count() == 0)
    sibling = box.exec("sleep 0.5; echo unharmed")
    assert (await sibling).out == b"unharmed\n"


async def test_a_command_that_follows_a_kill_at_once_is_run(
    box: Sandbox, sleepers: Sleepers
) -> None:
    """A supervisor that waits for work may be dying of that kill, and not look like it yet."""
    for _ in range(10):
        await asyncio.gather(*(box.exec("sleep 0.05") for _ in range(3)))
        killed = asyncio.create_task(box.exec(sleepers.command))
        await asyncio.sleep(0)
        killed.cancel()
        await asyncio.gather(killed, return_exceptions=True)
        results = await asyncio.gather(*(box.exec("echo well") for _ in range(3)))
        assert [(result.out, result.err) for result in results] == [(b"well\n", b"")] * 3


async def test_a_command_that_kills_its_supervisor_gains_nothing(
    box: Sandbox, sleepers: Sleepers, backend: SandboxBackend
) -> None:
    """Or its parent is boxd, which it cannot kill."""
    command = f"setsid {sleepers.command} & kill -9 $PPID; {sleepers.command}"
    result = await box.exec(command, timeout_s=2)
    assert not result.ok
    if backend.name != "subprocess":
        assert sleepers.count() == 0
    await box.close()
    assert sleepers.count() == 0


async def test_a_close_during_a_command_ends_it(
    backend: SandboxBackend, sleepers: Sleepers
) -> None:
    box = await backend.create(SPEC)
    call = asyncio.create_task(box.exec(f"setsid {sleepers.command} & {sleepers.command}"))
    await until(lambda: sleepers.count() == 2)
    await box.close()
    assert sleepers.count() == 0
    with pytest.raises(Exception, match="closed"):
        await call
    assert not await box.alive()
