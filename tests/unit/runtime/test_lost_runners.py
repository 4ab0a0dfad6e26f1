"""What a dead runner leaves behind: nothing in the scheduler, and its groups with another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError
from sample_trajectories import make_trajectory

from agentrl.rollout.attempt import Attempt
from agentrl.runtime import runners
from agentrl.runtime.coordinator import Coordinator
from agentrl.runtime.coordinator_state import CoordinatorState
from agentrl.runtime.journals import Recovered
from agentrl.runtime.runners import RunnerPool
from agentrl.types import Group, Trajectory
from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.decisions import Place
from scheduler.events import Role, Submitted, TurnReady, WorkerReady
from scheduler.routing.least_load import LeastLoad


def asks(trajectory_id: str, role: Role) -> list[Any]:
    return [
        Submitted(trajectory_id=trajectory_id, group_id="g", role=role),
        TurnReady(trajectory_id=trajectory_id, turn=0, context_tokens=9),
    ]


async def test_attempts_and_questions_of_a_dead_runner_hold_no_slot(tmp_path: Path) -> None:
    admission = CapacityAdmission(
        groups_per_step=1, num_steps=1, max_staleness=0, max_running_groups=1
    )
    scheduler = Scheduler(routing=LeastLoad(), admission=admission)
    log = tmp_path / "events.jsonl"
    state = CoordinatorState(scheduler=scheduler, log_bytes=0)
    coordinator = Coordinator(state, log, lambda: 0.0, tick_s=1.0)
    await coordinator.ready()
    fleet = [
        WorkerReady(worker_id=role.value, role=role, max_running=1)
        for role in (Role.ROLLOUT, Role.GENRM)
    ]
    await coordinator.tell("driver", 1, fleet, 0)
    attempt, question = asks("g-0", Role.ROLLOUT), asks("g-0/judge-0.0", Role.GENRM)
    mail = await coordinator.tell("runner-0", 1, [*attempt, *question], 0)
    assert {d.worker_id for d in mail.decisions if isinstance(d, Place)} == {"rollout", "genrm"}
    await coordinator.tell("runner-1", 1, asks("h-0/judge-0.0", Role.GENRM), 0)
    await coordinator.lost("runner-0")
    assert scheduler.num_open_trajectories == 1
    assert scheduler.num_held_slots == 1
    (place,) = (await coordinator.tell("runner-1", 3, [], 0)).decisions
    assert isinstance(place, Place)
    assert place.trajectory_id == "h-0/judge-0.0"
    await coordinator.tell("runner-0", 5, asks("g-1", Role.ROLLOUT), 0)
    assert scheduler.num_open_trajectories == 1, "sent before its death, and nobody will end it"
    await coordinator.tell("runner-2", 1, asks("g-2", Role.ROLLOUT), 0)
    assert scheduler.num_open_trajectories == 2
    await coordinator.close()


class Method:
    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self.remote = function


class FakeRunner:
    """Compares groups, unless it is dead."""

    def __init__(self, *, is_dead: bool) -> None:
        self._is_dead = is_dead
        self.ended = Method(self._ended)
        self.decide = Method(self._decide)

    async def _ended(self) -> list[Trajectory]:
        await asyncio.Event().wait()
        raise AssertionError

    async def _decide(self, group: Group) -> Group:
        if self._is_dead:
            raise RayActorError
        return group


async def test_a_group_is_compared_by_another_runner_when_one_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runners, "RUNNER_POLL_S", 0.001)
    decided: asyncio.Queue[Group] = asyncio.Queue()
    started: list[FakeRunner] = []

    async def start(name: str) -> FakeRunner:
        started.append(FakeRunner(is_dead=not started))
        return started[-1]

    async def forget(name: str) -> None: ...

    async def give_up(name: str, lost: Sequence[Attempt], error: str) -> Recovered:
        return Recovered([], [])

    pool = RunnerPool(
        start_runner=start,
        num_runners=1,
        on_returned=lambda trajectory: None,
        on_lost=forget,
        recover=give_up,
        on_decided=decided.put_nowait,
        silence_timeout_s=60.0,
        on_journal_failed=lambda lines: None,
    )
    group = Group(group_id="g", task_id="t", size=1, trajectories=(make_trajectory(),))
    running = asyncio.create_task(pool.run())
    pool.decide(group)
    await asyncio.sleep(0.01)
    assert decided.empty()
    pool._runners[0] = FakeRunner(is_dead=False)
    async with asyncio.timeout(30):
        assert (await decided.get()).group_id == "g"
    running.cancel()
    with pytest.raises((asyncio.CancelledError, BaseExceptionGroup)):
        await running
