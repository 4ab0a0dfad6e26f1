import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from agentrl.runtime.lifeline import outlive

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

    async def _ready(self) -> None:
        self.num_answers -= 1
        if self.num_answers < 0:
            await asyncio.Event().wait()

    async def _lifeline(self) -> None:
        await self.is_killed.wait()
        raise RayActorError


async def test_what_no_longer_answers_is_ended_and_told_like_a_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = FakeActor(num_answers=3)
    monkeypatch.setattr(ray, "kill", lambda killed: killed.is_killed.set())
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(RayActorError):
            await outlive("it", actor, silence_timeout_s=0.05)
    assert actor.num_answers == -1, "it was left alone while it answered"
