"""What a worker that is to change its role does when an order comes too late."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from agentrl.config.sections import BucketSection
from agentrl.runtime.handoffs import Handoffs
from agentrl.runtime.staff import WorkerSeat
from scheduler.decisions import Duty, HandoffEnded, Outcome
from scheduler.events import Role

DUTY = Duty(role=Role.ROLLOUT, bucket="default", accelerators=frozenset({"core0"}))


class FakeStaff:
    def __init__(self) -> None:
        self.reported: list[int] = []

    async def report(self, seat: WorkerSeat) -> None:
        self.reported.append(seat.generation)


@pytest.mark.parametrize(("generation", "reported"), [(3, [4]), (4, [])])
async def test_only_a_process_that_is_still_there_serves_again_after_a_roll_back(
    generation: int, reported: list[int]
) -> None:
    """The loss of one that is not raised the generation of its seat meanwhile."""
    staff: Any = FakeStaff()
    unused: Any = None
    bucket = BucketSection(name="default", max_running=4)
    seat = WorkerSeat("worker-0", Role.ROLLOUT, bucket, (), generation=generation)
    handoffs = Handoffs(seats={"worker-0": seat}, staff=staff, trainers=unused, tell=unused)
    handoffs.on_decision(
        HandoffEnded(
            t=0.0,
            job="main",
            worker_id="worker-0",
            generation=4,
            outcome=Outcome.ROLLED_BACK,
            duty=DUTY,
        )
    )
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await handoffs.run()
    assert staff.reported == reported
    assert seat.generation == 4
