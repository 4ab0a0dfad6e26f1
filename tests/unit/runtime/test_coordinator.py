"""A coordinator that dies at any moment, and its successor: nothing is taken in or delivered twice."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from agentrl.record.disk import DiskFailed
from agentrl.runtime import link as links
from agentrl.runtime.coordinator import Coordinator
from agentrl.runtime.coordinator_state import CoordinatorState
from agentrl.runtime.link import CoordinatorAddress, CoordinatorLink
from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.decisions import Admit, Decision, Place
from scheduler.events import (
    Event,
    Finished,
    GroupAccepted,
    Role,
    RunStarted,
    Submitted,
    TurnFinished,
    TurnReady,
    WorkerReady,
)
from scheduler.replay import read_log, replay
from scheduler.routing.least_load import LeastLoad

DEADLINE_S = 60


def fresh_state(log_bytes: int = 0) -> CoordinatorState:
    return CoordinatorState(scheduler=fresh_scheduler(), log_bytes=log_bytes)


def fresh_scheduler() -> Scheduler:
    return Scheduler(
        routing=LeastLoad(),
        admission=CapacityAdmission(
            groups_per_step=1, num_steps=10_000, max_staleness=10_000, max_running_groups=4
        ),
    )


class Remote:
    """A method as Ray offers it, of a process that may die before or after it has answered."""

    def __init__(self, process: Process, name: str) -> None:
        self._process, self._name = process, name

    async def remote(self, *arguments: object) -> Any:
        await asyncio.sleep(0)
        self._process.check()
        working = asyncio.ensure_future(getattr(self._process.coordinator, self._name)(*arguments))
        died = asyncio.ensure_future(self._process.died.wait())
        await asyncio.wait({working, died}, return_when=asyncio.FIRST_COMPLETED)
        self._process.check()
        return await working


class Process:
    """Of a coordinator."""

    def __init__(self, state: CoordinatorState, log: Path) -> None:
        ticks = iter(range(1_000_000_000))
        self.coordinator = Coordinator(state, log, lambda: next(ticks) / 1000, 1e6)
        self.died = asyncio.Event()

    def check(self) -> None:
        if self.died.is_set():
            raise RayActorError

    def kill(self) -> None:
        self.died.set()
        self.coordinator._ticking.cancel()
        self.coordinator._log.close()

    def __getattr__(self, name: str) -> Remote:
        return Remote(self, name)


class World:
    """A driver and a runner that play groups of one attempt, on one worker."""

    def __init__(self, log: Path, num_groups: int) -> None:
        self.log = log
        self.first = CoordinatorAddress("c", 0)
        self.kept = fresh_state().frozen()
        self.processes: dict[str, Process] = {}
        self.num_started = 0
        self.driver = CoordinatorLink(self.first, "driver", self.on_driver, find=self.find)
        self.runner = CoordinatorLink(self.first, "runner-0", self.on_runner, find=self.find)
        self.num_groups = num_groups
        self.admitted = 0
        self.placed: list[str] = []
        self.is_done = asyncio.Event()

    def find(self, name: str) -> Process:
        if name not in self.processes:
            raise ValueError(name)
        return self.processes[name]

    async def start(self) -> None:
        process = Process(CoordinatorState.thawed(self.kept), self.log)
        await process.coordinator.open()
        self.processes[self.first.after(self.num_started).name] = process
        self.num_started += 1

    async def keep_state(self) -> None:
        self.kept = await list(self.processes.values())[-1].coordinator.frozen()

    def kill(self) -> None:
        """As in Ray, the dead one is found under its name still."""
        list(self.processes.values())[-1].kill()

    def on_driver(self, decision: Decision) -> None:
        assert isinstance(decision, Admit)
        for _ in range(decision.num_groups):
            name = f"t{self.admitted}"
            self.admitted += 1
            self.runner.tell(Submitted(trajectory_id=name, group_id=name))
            self.runner.tell(TurnReady(trajectory_id=name, turn=0, context_tokens=5))

    def on_runner(self, decision: Decision) -> None:
        assert isinstance(decision, Place)
        name = decision.trajectory_id
        self.placed.append(name)
        self.runner.tell(TurnFinished(trajectory_id=name, turn=0, tokens=3, context_tokens=8))
        self.runner.tell(Finished(trajectory_id=name, tokens=3))
        self.driver.tell(GroupAccepted(group_id=name))
        if len(self.placed) >= self.num_groups:
            self.is_done.set()

    async def play(self, rng: random.Random, *, num_kills: int) -> None:
        await self.start()
        self.driver.tell(RunStarted())
        self.driver.tell(WorkerReady(worker_id="w", role=Role.ROLLOUT, max_running=2))
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(link.run()) for link in (self.driver, self.runner)]
            for _ in range(num_kills):
                await asyncio.sleep(rng.random() * 0.01)
                if rng.random() < 0.5:
                    await self.keep_state()
                await asyncio.sleep(rng.random() * 0.01)
                self.kill()
                await asyncio.sleep(rng.random() * 0.002)
                if rng.random() < 0.5:
                    with self.log.open("ab") as file:
                        file.write(b'{"event": {"type": "Tur')  # torn by the kill
                await self.start()
            await self.is_done.wait()
            for task in running:
                task.cancel()
        self.kill()

    def events(self) -> list[Event]:
        with self.log.open("rb") as lines:
            return [entry.event for entry in read_log(lines)]


@pytest.mark.parametrize("seed", range(6))
async def test_kills_at_any_moment_change_nothing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "RETRY_S", 0.001)
    world = World(tmp_path / "events.jsonl", num_groups=60)
    await world.play(random.Random(seed), num_kills=12)
    placed = world.placed[:60]
    assert len(set(world.placed)) == len(world.placed), "a place was delivered twice"
    assert placed == [f"t{n}" for n in range(60)], "the order of places depends on no kill"
    submitted = [e.trajectory_id for e in world.events() if isinstance(e, Submitted)]
    assert len(set(submitted)) == len(submitted), "an event was taken in twice"
    with world.log.open("rb") as lines:
        assert replay(fresh_scheduler(), read_log(lines)).difference is None
    times = [event.t for event in world.events()]
    assert times == sorted(times)


async def test_a_log_that_comes_out_otherwise_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    first = Coordinator(fresh_state(), log, lambda: 1.0, 1e6)
    await first.open()
    assert await first.hello("driver", 0) == 0
    mail = await first.tell("driver", 1, [RunStarted()], 0)
    assert mail.decisions
    await first.close()
    log.write_bytes(log.read_bytes().replace(b'"num_groups":4', b'"num_groups":5'))
    with pytest.raises(ValueError, match="is now answered by"):
        await Coordinator(fresh_state(), log, lambda: 1.0, 1e6).open()


async def test_what_a_kept_state_covers_is_not_replayed(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    first = Coordinator(fresh_state(), log, lambda: 1.0, 1e6)
    await first.open()
    await first.tell("driver", 1, [RunStarted()], 0)
    state = CoordinatorState.thawed(await first.frozen())
    covered = log.read_bytes()
    later = [WorkerReady(worker_id="w", role=Role.ROLLOUT, max_running=2)]
    await first.tell("driver", 2, later, 0)
    await first.close()
    log.write_bytes(b"x" * len(covered) + log.read_bytes()[len(covered) :])
    next_one = Coordinator(state, log, lambda: 1.0, 1e6)
    await next_one.open()
    assert await next_one.hello("driver", 0) == 2
    (admit,) = (await next_one.listen("driver", 0)).decisions
    assert isinstance(admit, Admit)
    assert (await next_one.status()).events == {"RunStarted": 1, "WorkerReady": 1}
    await next_one.close()


async def test_a_launch_goes_on_from_its_own_part_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    before = Coordinator(fresh_state(), log, lambda: 1.0, 1e6)
    await before.open()
    await before.tell("driver", 1, [RunStarted()], 0)
    await before.close()
    next_launch = Coordinator(fresh_state(log.stat().st_size), log, lambda: 1.0, 1e6)
    await next_launch.open()
    assert await next_launch.hello("driver", 0) == 0
    assert (await next_launch.tell("driver", 1, [RunStarted(version=3)], 0)).first == 1
    await next_launch.close()


async def test_who_starts_late_finds_the_coordinator_that_there_is_by_then(tmp_path: Path) -> None:
    world = World(tmp_path / "events.jsonl", num_groups=1)
    for _ in range(3):
        await world.start()
        world.kill()
    del world.processes["c-0"]  # which Ray may have forgotten
    async with asyncio.timeout(DEADLINE_S):
        await world.play(random.Random(0), num_kills=0)
    assert world.placed[0] == "t0"


class FullDisk:
    """A log that takes nothing more."""

    size = 0

    def append(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        pass


async def on_a_full_disk(log: Path, tick_s: float) -> Coordinator:
    coordinator = Coordinator(fresh_state(), log, lambda: 1.0, tick_s)
    await coordinator.open()
    coordinator._log.close()
    full: Any = FullDisk()
    coordinator._log = full
    return coordinator


async def test_a_full_disk_is_told_by_every_call_from_then_on(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    coordinator = await on_a_full_disk(log, tick_s=1e6)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: coordinator.tell("driver", 1, [RunStarted()], 0),
        lambda: coordinator.tell("runner-0", 1, [], 0),
        lambda: coordinator.listen("driver", 0),
        lambda: coordinator.hello("runner-0", 0),
        lambda: coordinator.lost("runner-0"),
        coordinator.learned,
        coordinator.frozen,
    ]
    for call in calls:
        with pytest.raises(DiskFailed, match=rf"{log}: .*No space left on device"):
            await call()
    coordinator._ticking.cancel()


async def test_who_waits_for_a_coordinators_death_hears_of_what_ended_its_clock(
    tmp_path: Path,
) -> None:
    coordinator = await on_a_full_disk(tmp_path / "events.jsonl", tick_s=0.001)
    with pytest.raises(DiskFailed):
        await asyncio.wait_for(coordinator.lifeline(), DEADLINE_S)


async def test_what_ends_a_link_is_raised_as_itself(tmp_path: Path) -> None:
    world = World(tmp_path / "events.jsonl", num_groups=1)
    await world.start()
    (process,) = world.processes.values()
    process.coordinator._log.close()
    full: Any = FullDisk()
    process.coordinator._log = full
    world.driver.tell(RunStarted())
    with pytest.raises(DiskFailed):
        await asyncio.wait_for(world.driver.run(), DEADLINE_S)
    process.coordinator._ticking.cancel()
