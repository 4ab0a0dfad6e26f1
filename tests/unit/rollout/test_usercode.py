"""A method that holds the event loop is found by name."""

from __future__ import annotations

import asyncio
import threading

import pytest
from structlog.testing import capture_logs

from agentrl.rollout.usercode import UserCodeError, call, watched


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
