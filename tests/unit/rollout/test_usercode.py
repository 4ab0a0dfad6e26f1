"""A method that holds the event loop is found by name."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest
from structlog.testing import capture_logs

from agentrl.rollout import user_threads
from agentrl.rollout.usercode import UserCodeError, call, call_within, watched


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_only_the_stretch_that_holds_the_loop_is_logged() -> None:
    clock = Clock()

    async def tool() -> str:
        await asyncio.sleep(0)
        clock.now += 0.2
        await asyncio.sleep(0)
        clock.now += 0.3
        return "done"

    with capture_logs() as logs:
        assert await watched(tool(), "Env.tool", clock) == "done"
    assert [(log["method"], log["seconds"]) for log in logs] == [("Env.tool", 0.3)]


async def test_a_watched_coroutine_is_cancelled_like_any_other() -> None:
    cleaned = []

    async def tool() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await watched(tool(), "Env.tool")
    assert cleaned == [True]


async def test_plain_methods_run_in_a_thread_and_may_return_something_to_wait_for() -> None:
    def where() -> int:
        return threading.get_ident()

    async def late() -> str:
        return "late"

    assert await call(where) != threading.get_ident()
    assert await call(lambda: late()) == "late"


async def test_the_error_holds_the_users_traceback() -> None:
    def mistake() -> None:
        raise KeyError("mine")

    with pytest.raises(UserCodeError, match=r"(?s)in .*mistake: Traceback.*KeyError: 'mine'"):
        await call(mistake)


async def test_plain_methods_wait_neither_for_each_other_nor_hold_up_anybody_else() -> None:
    """However few processors there are: the pool that asyncio shares has a few threads more."""
    everybody = threading.Barrier(200)

    def meet() -> None:
        everybody.wait(10)

    await asyncio.gather(*(call_within(10, meet) for _ in range(200)))


async def test_methods_that_never_return_are_named_once_and_take_no_place_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_threads, "GRACE_S", 0.3)
    end = threading.Event()

    def hang() -> None:
        end.wait(30)

    def slow() -> None:
        time.sleep(0.02)

    with capture_logs() as logs:
        for _ in range(40):
            with pytest.raises(UserCodeError, match=r"hang, after 0\.001 s"):
                await call_within(0.001, hang)
        with pytest.raises(UserCodeError, match="slow, after"):
            await call_within(0.001, slow)
        await asyncio.sleep(0.6)
    assert await call_within(5, lambda: "done") == "done"
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "the library's own"), 5)
    named = [log["method"] for log in logs if log["log_level"] == "warning"]
    assert [name.rpartition(".")[2] for name in named] == ["hang"]
    end.set()


async def test_too_many_that_never_return_are_the_environments_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = threading.Event()
    monkeypatch.setattr(user_threads, "_lost", lost := user_threads.LostCalls())
    monkeypatch.setattr(user_threads, "MAX_LOST", 3)

    def hang() -> None:
        end.wait(30)

    for _ in range(3):
        with pytest.raises(UserCodeError, match="after"):
            await call_within(0.001, hang)
    with pytest.raises(UserCodeError, match=r"3 calls .* never returned \(.*hang 3 times\)"):
        await call(lambda: "never begun")
    end.set()
    while lost.names():  # noqa: ASYNC110 - a thread sets no event
        await asyncio.sleep(0.001)
    assert await call(lambda: "on") == "on"


async def test_an_environment_that_exits_is_to_blame_and_takes_nobody_along() -> None:
    def plain() -> None:
        sys.exit("that is it")

    async def asynchronous() -> None:
        sys.exit("that is it")

    for calls_exit in (plain, asynchronous):
        with pytest.raises(UserCodeError, match="that is it"):
            await call(calls_exit)


async def test_a_cancellation_that_nobody_asked_for_is_the_environments_error() -> None:
    async def waits_for_what_it_cancelled() -> None:
        task = asyncio.create_task(asyncio.sleep(10))
        task.cancel()
        await task

    def plain() -> None:
        raise asyncio.CancelledError

    for ends_itself in (waits_for_what_it_cancelled, plain):
        with pytest.raises(UserCodeError, match=f"(?s){ends_itself.__name__}.*CancelledError"):
            await asyncio.ensure_future(call(ends_itself))


async def test_a_cancellation_that_was_asked_for_is_nobodys_error() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    task = asyncio.ensure_future(call(hang))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_ctrl_c_of_a_plain_methods_own_is_the_environments_error() -> None:
    def plain() -> None:
        raise KeyboardInterrupt

    with pytest.raises(UserCodeError, match=r"(?s)plain.*KeyboardInterrupt"):
        await call(plain)
