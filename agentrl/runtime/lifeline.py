"""Notices that a process is gone, or as good as gone: such a one is killed, so it can be replaced.

A dead process fails the calls that wait for it. One that is stopped, stuck in a driver or blocked by
code that never yields fails nothing, and whoever waits for it waits on. So those who keep processes
ask them now and then, and one that does not answer for long is ended. So is one that answers, and
says that the engine it serves has broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

import ray
import structlog
from ray.exceptions import ActorUnschedulableError, RayActorError

from agentrl.runtime.link import Actor

log = structlog.get_logger(__name__)
Result = TypeVar("Result")


async def answer_or_kill(
    name: str, actor: Actor, asked: Awaitable[Result], *, silence_timeout_s: float
) -> Result | None:
    """What the actor says; None when it said nothing in time, and is killed for that."""
    try:
        async with asyncio.timeout(silence_timeout_s):
            return await asked
    except TimeoutError:
        log.warning(
            "a process does not answer; ending it", process=name, silent_s=silence_timeout_s
        )
        ray.kill(actor)
        return None


async def patiently(
    name: str,
    actor: Actor,
    work: Awaitable[Result],
    *,
    silence_timeout_s: float,
    progressed: Callable[[], None],
) -> Result:
    """What a call comes to that may take very long, and has a limit of its own.

    It counts as progress while the actor, which has `node_id`, answers other calls beside it. One
    that does not is killed, and that raises `RayActorError`.
    """
    working = asyncio.ensure_future(work)
    try:
        while not working.done():
            asked = actor.node_id.remote()
            if await answer_or_kill(name, actor, asked, silence_timeout_s=silence_timeout_s):
                progressed()
            await asyncio.wait({working}, timeout=silence_timeout_s / 4)
        return working.result()
    finally:
        working.cancel()


async def outlive(name: str, actor: Actor, *, silence_timeout_s: float) -> NoReturn:
    """Wait until an actor is gone, and raise `RayActorError` then. It has `lifeline` and `ready`."""
    life = asyncio.ensure_future(_life(actor))
    try:
        while True:
            done, _ = await asyncio.wait({life}, timeout=silence_timeout_s / 4)
            if done:
                life.result()
            await answer_or_kill(
                name, actor, actor.ready.remote(), silence_timeout_s=silence_timeout_s
            )
    finally:
        life.cancel()


async def end_when_broken(name: str, actor: Actor) -> str | None:
    """Kill the actor when its engine breaks: a person finds in the log why, others see a death.

    Returns the traceback; None when it was ended by something else.
    """
    try:
        trace: str = await actor.broken.remote()
    except (RayActorError, ActorUnschedulableError):
        return None
    log.error("an engine broke; its process is ended", process=name, exception=trace)
    ray.kill(actor)
    return trace


async def _life(actor: Actor) -> None:
    await actor.lifeline.remote()
