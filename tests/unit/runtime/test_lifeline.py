import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import ray
import structlog
from ray.exceptions import RayActorError

from agentrl.runtime.lifeline import end_when_broken, outlive

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

    async def _ready(self) -> None:
        self.num_answers -= 1
        if self.num_answers < 0:
            await asyncio.Event().wait()

    async def _broken(self) -> str:
        return "RuntimeError: out of memory"

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
