"""Calling what a user wrote: plain or async methods, and whom to blame when one raises.

A plain method runs in a thread of its own. An async one runs on the event loop, which it must not hold: all
other rollouts of the process wait meanwhile. One that does is named in the log.

Invariant: what leaves `call` is the method's result, a `UserCodeError`, an error of the
infrastructure (box, engine, judge) that the method let through, or the end that somebody else
asked for: a cancellation of the task, Ctrl-C.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import traceback
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from agentrl.engine.engine import EngineError
from agentrl.judging import JudgeError
from agentrl.rollout.user_threads import in_thread
from sandboxes.sandbox import SandboxError

log = structlog.get_logger(__name__)

INFRASTRUCTURE = (SandboxError, EngineError, JudgeError)
HOLD_LIMIT_S = 0.25


class UserCodeError(Exception):
    """An environment's own code raised; `__cause__` is what it raised."""

    def __str__(self) -> str:
        cause = "".join(traceback.format_exception(self.__cause__)) if self.__cause__ else ""
        return f"in {self.args[0]}: {cause or 'failed'}"


async def call(method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    name = method.__qualname__

    def run() -> Any:
        with blaming(name):  # here too: no future takes a StopIteration
            return method(*args, **kwargs)

    with blaming(name):
        result = run() if inspect.iscoroutinefunction(method) else await in_thread(run, name)
        # also a plain method may return something to wait for
        return await watched(result, name) if inspect.iscoroutine(result) else result


async def call_within(timeout_s: float, method: Callable[[], Any]) -> Any:
    """`call` of a method that must end in time; one that does not is wrong."""
    try:
        async with asyncio.timeout(timeout_s):
            return await call(method)
    except TimeoutError as error:
        raise UserCodeError(f"{method.__qualname__}, after {timeout_s:g} s") from error


@contextmanager
def blaming(name: str) -> Iterator[None]:
    """What goes wrong in here is the fault of the environment's method `name`."""
    try:
        yield
    except (UserCodeError, *INFRASTRUCTURE):
        raise
    except BaseException as error:
        if _is_asked_for(error):
            raise
        raise UserCodeError(name) from error


def _is_asked_for(error: BaseException) -> bool:
    """Whether somebody else ends what runs here. A method can raise all of these by itself, as by
    waiting for a task of its own that was cancelled; nobody would then end its rollout."""
    match error:
        case asyncio.CancelledError():
            task = _current_task()
            return task is not None and task.cancelling() > 0
        case KeyboardInterrupt():
            return threading.current_thread() is threading.main_thread()
        case _:
            return isinstance(error, GeneratorExit)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread has no event loop
        return None


@types.coroutine
def watched(
    coroutine: Coroutine[Any, Any, Any],
    name: str,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Any, Any, Any]:
    """Run a coroutine and log each stretch in which it held the event loop for too long."""
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        begun = clock()
        try:
            waiting = coroutine.send(sent) if thrown is None else coroutine.throw(thrown)
        except StopIteration as end:
            return end.value
        finally:
            held = clock() - begun
            if held > HOLD_LIMIT_S:
                log.warning(
                    "a method held the event loop; make it a plain `def`, or await what blocks",
                    method=name,
                    seconds=round(held, 3),
                )
        try:
            sent, thrown = (yield waiting), None
        except BaseException as error:  # noqa: BLE001 - handed on to the coroutine
            sent, thrown = None, error
