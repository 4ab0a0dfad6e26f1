"""What the driver makes of a replica that fails in the warm-up: the loss, not its echo."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from agentrl.runtime.display import WarmupProgress
from agentrl.runtime.fleet_warmup import follow
from agentrl.runtime.membership import ReplicaLost

PROGRESS = WarmupProgress(step=1, num_steps=2, loss=1.0)


async def steps(error: Exception | None) -> AsyncIterator[Awaitable[Any]]:
    async def one() -> WarmupProgress:
        return PROGRESS

    yield one()
    if error is not None:
        raise RayTaskError("warm_up", str(error), error).as_instanceof_cause()


async def test_a_replica_is_followed_to_its_end() -> None:
    seen: list[WarmupProgress] = []
    assert await follow(steps(None), seen.append)
    assert seen == [PROGRESS]


async def test_one_that_failed_because_another_did_says_no_more_than_that() -> None:
    assert not await follow(steps(ReplicaLost("connection closed by peer")), None)


async def test_one_that_failed_by_itself_says_why() -> None:
    with pytest.raises(ValueError, match="no demonstrations"):
        await follow(steps(ValueError("no demonstrations")), None)
