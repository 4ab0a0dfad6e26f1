"""What a worker that is to change its role does with orders that come late, or too early for it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from agentrl.config.sections import BucketSection
from agentrl.runtime.handoffs import Handoffs
from agentrl.runtime.staff import WorkerSeat
from scheduler.decisions import Duty, HandoffEnded, HandoffOrder, Outcome
from scheduler.events import Event, HandoffStage, Role, Stage

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


class SavingTrainers:
    """Its workers save a checkpoint, which lasts."""

    def __init__(self) -> None:
        self.has_saved = asyncio.Event()

    async def saved(self, worker_id: str) -> None:
        await self.has_saved.wait()


class IdleWorker:
    class quiesce:  # as Ray names it
        @staticmethod
        async def remote() -> None:
            pass


async def test_a_training_worker_that_saves_a_checkpoint_may_still_stay_where_it_is() -> None:
    """From RELEASE on one that takes too long is started anew, and its state would be lost."""
    unused: Any = None
    worker: Any = IdleWorker()
    trainers: Any = SavingTrainers()
    told: asyncio.Queue[Event] = asyncio.Queue()
    bucket = BucketSection(name="default", max_running=4)
    seat = WorkerSeat("worker-0", Role.TRAINING, bucket, (), worker, generation=4)
    handoffs = Handoffs(
        seats={"worker-0": seat}, staff=unused, trainers=trainers, tell=told.put_nowait
    )
    running = asyncio.create_task(handoffs.run())
    handoffs.on_decision(
        HandoffOrder(
            t=0.0,
            job="main",
            worker_id="worker-0",
            generation=4,
            stage=Stage.QUIESCE,
            duty=DUTY,
            version=1,
            deadline_t=60.0,
        )
    )
    for _ in range(20):
        await asyncio.sleep(0)
    assert told.empty()
    trainers.has_saved.set()
    async with asyncio.timeout(60):
        quiesced = await told.get()
    running.cancel()
    assert isinstance(quiesced, HandoffStage)
    assert quiesced.stage is Stage.QUIESCE
