"""An inquiry brings back what there is, whoever cannot answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from agentrl.engine.engine import EngineError
from agentrl.runtime.status import CoordinatorStatus, Inquiry

COORDINATOR = CoordinatorStatus(demands={}, workers=[], events={}, decisions={})


class Method:
    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self.remote = function


class FakeActor:
    def __init__(self, failure: Exception | None) -> None:
        self._failure = failure
        self.status = Method(self._status)

    async def _status(self) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        return []


@pytest.mark.parametrize(
    "failure",
    [
        RayActorError(),
        RayTaskError("status", "", EngineError("the engine broke")).as_instanceof_cause(),
    ],
)
async def test_who_cannot_answer_keeps_nobody_else_from_it(failure: Exception) -> None:
    async def coordinator() -> CoordinatorStatus:
        return COORDINATOR

    workers = {"worker-0": FakeActor(failure), "worker-1": FakeActor(None)}
    inquiry = Inquiry(coordinator, runners=dict, workers=lambda: workers)
    status = await inquiry.make()
    assert status.workers == {"worker-0": None, "worker-1": []}
    assert status.coordinator == COORDINATOR
