import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import ray
import structlog
from ray.exceptions import RayActorError

from agentrl.runtime.lifeline import end_when_broken, outlive, patiently

DEADLINE_S = 60


class Method:
    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self.remote = function


class FakeActor:
    """Answers `num_answers` times and then no more; dies when it is killed."""

    def __init__(self, num_answers: int) -> None:
        self.num_answers = num_answers
        self.is_killed = asyncio.Event()
        self.ready, self.lifeline = Method(self._ready), Method(self._lifeline)
        self.broken = Method(self._broken)
        self.node_id = Method(self._node_id)

    async def _ready(self) -> None:
        self.num_answers -= 1
        if self.num_answers < 0:
            await asyncio.Event().wait()

    async def _broken(self) -> str:
        return "RuntimeError: out of memory"

    async def _node_id(self) -> str:
        if self.is_killed.is_set():
            raise RayActorError
        await self._ready()
        return "node"

    async def _lifeline(self) -> None:
        await self.is_killed.wait()
        raise RayActorError


def kill(actor: Any) -> None:
    actor.is_killed.set()


async def test_what_no_longer_answers_is_ended_and_told_like_a_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = FakeActor(num_answers=3)
    monkeypatch.setattr(ray, "kill", kill)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(RayActorError):
            await outlive("it", actor, silence_timeout_s=0.05)
    assert actor.num_answers == -1, "it was left alone while it answered"


async def test_a_process_whose_engine_breaks_is_ended_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = FakeActor(num_answers=0)
    monkeypatch.setattr(ray, "kill", kill)
    with structlog.testing.capture_logs() as logs:
        await end_when_broken("worker-0", actor)
    assert actor.is_killed.is_set()
    (line,) = logs
    assert (line["log_level"], line["process"]) == ("error", "worker-0")
    assert "out of memory" in line["exception"]


async def test_what_takes_long_is_progress_while_its_process_answers() -> None:
    """As when an image is pulled: nobody is to take it for a run that stands still."""
    heard: list[None] = []
    async with asyncio.timeout(DEADLINE_S):
        told = await patiently(
            "it",
            FakeActor(num_answers=1000),
            asyncio.sleep(0.3, "done"),
            silence_timeout_s=0.1,
            progressed=lambda: heard.append(None),
        )
    assert told == "done"
    assert len(heard) > 2


async def test_what_takes_long_in_a_process_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor, heard = FakeActor(num_answers=2), []
    monkeypatch.setattr(ray, "kill", kill)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(RayActorError):
            await patiently(
                "it",
                actor,
                asyncio.Event().wait(),
                silence_timeout_s=0.05,
                progressed=lambda: heard.append(None),
            )
    assert len(heard) == 2
