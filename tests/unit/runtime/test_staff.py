"""Workers that are lost while a run starts, and those whose machine is."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import ray
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError

from agentrl.config.sections import BucketSection
from agentrl.runtime.failures import ProcessLost
from agentrl.runtime.staff import START_TRIES, Staff, WorkerSeat
from scheduler.events import Role


class FakeStaff(Staff):
    """Starts no processes, and says how many it should have started in place of others."""

    def __init__(self) -> None:
        unused: Any = None
        self.num_started = self.num_replaced = 0
        super().__init__(
            config=unused,
            layout=unused,
            store=unused,
            secret="",
            tell=unused,
            announce=unused,
            waiting=lambda name: nullcontext(),
            on_replaced=self._count,
            follow=unused,
        )

    def _count(self) -> None:
        self.num_replaced += 1

    def start_process(self, seat: WorkerSeat) -> None:
        self.num_started += 1


def seat_on(slot: str = "") -> WorkerSeat:
    bucket = BucketSection(name="default", max_running=4)
    return WorkerSeat("worker-0", Role.ROLLOUT, bucket, (), slot=slot)


async def test_who_dies_at_the_start_is_replaced_until_that_goes_on_and_on() -> None:
    staff = FakeStaff()

    async def dies(seat: WorkerSeat) -> None:
        if staff.num_started < num_deaths:
            raise RayActorError

    num_deaths = START_TRIES - 1
    await staff.persist(seat_on(), dies)
    assert staff.num_started == staff.num_replaced == START_TRIES - 1
    num_deaths = 99
    with pytest.raises(
        ProcessLost, match=rf"{START_TRIES} processes of worker-0 died at the start"
    ):
        await staff.persist(seat_on(), dies)


async def test_a_slot_whose_machine_goes_at_the_start_ends_the_launch_at_once() -> None:
    """Its process must be there and nowhere else, and no other slot comes before the run goes on."""
    staff = FakeStaff()

    async def is_on_a_lost_machine(seat: WorkerSeat) -> None:
        if staff.num_started == 0:
            raise RayActorError
        raise ActorUnschedulableError("the node specified is not alive")

    with pytest.raises(ProcessLost, match="the machine of worker-0 left the cluster"):
        await staff.persist(seat_on("node-a/cpu0"), is_on_a_lost_machine)
    assert staff.num_started == 1


async def test_who_cannot_be_reached_is_ended_before_another_sits_in_the_seat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[object] = []
    monkeypatch.setattr(ray, "kill", ended.append)
    staff, seat = FakeStaff(), seat_on()
    seat.actor = "the first one"

    async def breaks_once(seat: WorkerSeat) -> None:
        if staff.num_started == 0:
            raise ActorUnavailableError("for a moment", None)

    await staff.persist(seat, breaks_once)
    assert ended == ["the first one"]
