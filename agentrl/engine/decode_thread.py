"""The thread that runs a batcher, and the crossing between it and the event loop.

The event loop posts actions, which run between two steps. Tokens cross back in at most one call
a step: those of turns that ended at once, those of running turns ten times a second, because
waking every reader for every token would cost more than sampling it. What an action raises goes to
whoever awaits it; an `EngineError` among that ends the engine too, as does whatever a step raises, and
everybody is told.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import torch

from agentrl.engine.batcher import Batcher
from agentrl.engine.engine import EngineError
from agentrl.engine.turn import Progress

T = TypeVar("T")

_REPORT_S = 0.1
"""Tokens of running turns are held back for at most this long, and one step; a process that is
killed takes so many with it."""


class _Posted(NamedTuple):
    action: Callable[[], Any]
    done: Future[Any]


class DecodeThread:
    def __init__(
        self,
        batcher: Batcher,
        *,
        receive: Callable[[Sequence[Progress]], None],
        fail: Callable[[EngineError], None],
    ) -> None:
        """`receive` and `fail` are called in the event loop."""
        self._batcher = batcher
        self._receive = receive
        self._fail = fail
        self._failure: EngineError | None = None
        self._is_paused = False
        self._is_closed = False
        self._next_report_s = 0.0
        self._posted: list[_Posted] = []
        self._news = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="decode", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ called in the event loop

    def post(self, action: Callable[[], T]) -> Future[T]:
        """Run `action` between two steps."""
        done: Future[T] = Future()
        self._loop = asyncio.get_running_loop()
        with self._news:
            if self._failure is not None:
                raise self._failure
            self._posted.append(_Posted(action, done))
            self._news.notify()
        return done

    async def call(self, action: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self.post(action))

    async def set_paused(self, is_paused: bool) -> None:
        def change() -> None:
            self._is_paused = is_paused

        await self.call(change)

    async def close(self) -> None:
        def stop() -> None:
            self._batcher.abort_all()
            self._is_closed = True

        if self._failure is None:
            await self.call(stop)
        await asyncio.to_thread(self._thread.join)

    # ------------------------------------------------------------------ the thread itself

    def _main(self) -> None:
        try:
            with torch.inference_mode():
                while not self._is_closed:
                    self._run_posted()
                    if self._may_step:
                        self._batcher.step()
                        self._hand_over()
            self._end(EngineError("the engine is closed"))
        except Exception as error:  # noqa: BLE001  every caller is told
            failure = EngineError(f"the engine broke: {error!r}")
            failure.__cause__ = error
            self._end(failure)

    @property
    def _may_step(self) -> bool:
        return self._batcher.has_work and not (self._is_paused or self._is_closed)

    def _run_posted(self) -> None:
        """Run what was posted; wait for something when there is nothing else to do."""
        with self._news:
            self._news.wait_for(lambda: self._posted or self._may_step)
            posted, self._posted = self._posted, []
        if not posted:
            return
        results = [_outcome(action) for action, _ in posted]
        # Tokens first: whoever awaits an action finds its effects already streamed.
        self._hand_over()
        for (_, done), (result, error) in zip(posted, results, strict=True):
            if not done.set_running_or_notify_cancel():
                continue
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)
        for _, error in results:
            if isinstance(error, EngineError):
                raise error

    def _hand_over(self) -> None:
        is_due = time.monotonic() >= self._next_report_s or not self._may_step
        if progress := self._batcher.take_progress(running=is_due):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._receive, progress)
        if is_due:
            self._next_report_s = time.monotonic() + _REPORT_S

    def _end(self, failure: EngineError) -> None:
        with self._news:
            self._failure = failure
            posted, self._posted = self._posted, []
        for _, done in posted:
            if done.set_running_or_notify_cancel():
                done.set_exception(failure)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._fail, failure)


def _outcome(action: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return action(), None
    except Exception as error:  # noqa: BLE001  raised where the action is awaited
        return None, error
