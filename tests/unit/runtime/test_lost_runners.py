"""What a dead runner leaves behind: nothing in the scheduler, and its groups with another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError
from sample_trajectories import make_trajectory

from agentrl.rollout.attempt import Attempt
from agentrl.runtime import runners
from agentrl.runtime.beside import beside
from agentrl.runtime.coordinator import Coordinator
from agentrl.runtime.coordinator_state import CoordinatorState
from agentrl.runtime.dispatch import EngineAddress
from agentrl.runtime.drains import Drains
from agentrl.runtime.failures import ProcessLost
from agentrl.runtime.journals import Recovered
from agentrl.runtime.runners import RunnerPool, introduce
from agentrl.types import Group, Task, Trajectory
from sandboxes import BackendUnavailable
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


def num_open(scheduler: Scheduler) -> int:
    return sum(demand.total for demand in scheduler.demands().values())


async def test_attempts_and_questions_of_a_dead_runner_hold_no_slot(tmp_path: Path) -> None:
    admission = CapacityAdmission(
        groups_per_step=1, num_steps=1, max_staleness=0, max_running_groups=1
    )
    scheduler = Scheduler(routing=LeastLoad(), admission=admission)
    log = tmp_path / "events.jsonl"
    state = CoordinatorState(scheduler=scheduler, log_bytes=0)
    coordinator = Coordinator(state, log, lambda: 0.0, tick_s=1.0)
    await coordinator.open()
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
    assert num_open(scheduler) == 1
    assert {w.worker_id: w.num_running for w in scheduler.members()} == {"rollout": 0, "genrm": 1}
    (place,) = (await coordinator.tell("runner-1", 3, [], 0)).decisions
    assert isinstance(place, Place)
    assert place.trajectory_id == "h-0/judge-0.0"
    await coordinator.tell("runner-0", 5, asks("g-1", Role.ROLLOUT), 0)
    assert num_open(scheduler) == 1, "sent before its death, and nobody will end it"
    await coordinator.tell("runner-2", 1, asks("g-2", Role.ROLLOUT), 0)
    assert num_open(scheduler) == 2
    await coordinator.close()


class Method:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function


class FakeRunner:
    """Compares groups, unless it is dead, and says that attempts have ended when it is told so."""

    def __init__(
        self, *, is_dead: bool = False, node_id: str = "a", dies_later: bool = False
    ) -> None:
        self._is_dead = is_dead
        self.dies_later = dies_later
        self._node_id = node_id
        self.submitted: list[str] = []
        self.results: asyncio.Queue[list[Trajectory]] = asyncio.Queue()
        self.is_closed = self.is_killed = False
        self.ended = Method(self._say_what_ended)
        self.decide = Method(self._decide)
        self.node_id = Method(self._say_node_id)
        self.submit = Method(self._submit)
        self.close = Method(self._close)
        self.connect = Method(self._connect)
        self.engines: list[str] = []
        self.is_stopped = False

    async def _connect(self, address: EngineAddress) -> None:
        if self.is_stopped:
            await asyncio.Event().wait()
        self.engines.append(address.worker_id)

    async def _say_what_ended(self) -> list[Trajectory]:
        if self.dies_later:
            raise RayActorError
        return await self.results.get()

    async def _say_node_id(self) -> str:
        return self._node_id

    def _submit(self, attempts: Sequence[tuple[Attempt, object]]) -> None:
        self.submitted += [attempt.trajectory_id for attempt, _ in attempts]

    async def _close(self) -> None:
        self.is_closed = True

    def kill(self) -> None:
        self.is_killed = True

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
        drains=Drains(own_node="own", grace_s=30.0),
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


class Leaving:
    """Two runners, the first one on a node that is drained; `moved` are attempts that are begun
    elsewhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runners, "RUNNER_POLL_S", 0.001)
        monkeypatch.setattr(ray, "kill", lambda runner: runner.kill())
        self.first, self.second = FakeRunner(node_id="a"), FakeRunner(node_id="b")
        self._to_start = [self.first, self.second]
        self.returned: list[str] = []
        self.lost: list[str] = []
        self.moved: list[str] = []
        self.drains = Drains(own_node="own", grace_s=30.0)
        self.pool = RunnerPool(
            start_runner=self._start,
            num_runners=1,
            drains=self.drains,
            on_returned=lambda trajectory: self.returned.append(trajectory.trajectory_id),
            on_lost=self._on_lost,
            recover=self._recover,
            on_decided=lambda group: None,
            silence_timeout_s=60.0,
            on_journal_failed=lambda lines: None,
        )

    async def _start(self, name: str) -> FakeRunner:
        return self._to_start.pop(0)

    async def _on_lost(self, name: str) -> None:
        self.lost.append(name)

    async def _recover(self, name: str, lost: Sequence[Attempt], error: str) -> Recovered:
        self.moved += [attempt.trajectory_id for attempt in lost]
        return Recovered([], [(attempt, None) for attempt in lost])

    def submit(self, group_id: str) -> str:
        attempt = Attempt(
            trajectory_id=f"{group_id}-0", task=Task("t", "go"), group_id=group_id, sibling=0
        )
        self.pool.submit(attempt)
        return attempt.trajectory_id

    async def play_on_the_first(self) -> str:
        attempt = self.submit("g0")
        await self.until(lambda: self.first.submitted == [attempt])
        return attempt

    async def until(self, what: Callable[[], bool]) -> None:
        for _ in range(30_000):
            if what():
                return
            await asyncio.sleep(0.001)
        raise AssertionError(vars(self))


def ended(trajectory_id: str) -> list[Trajectory]:
    return [replace(make_trajectory(), trajectory_id=trajectory_id)]


async def test_a_runner_whose_machine_is_drained_ends_what_it_has_and_gets_nothing_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Leaving(monkeypatch)
    running = asyncio.create_task(bench.pool.run())
    old = await bench.play_on_the_first()
    bench.drains.note({"a": None})
    await bench.until(lambda: "runner-1" in bench.pool.processes())
    assert "runner-0" in bench.pool.processes(), "it is still told of engines"
    new = bench.submit("g1")
    await bench.until(lambda: bench.second.submitted == [new])
    bench.first.results.put_nowait(ended(old))
    await bench.until(lambda: bench.first.is_killed)
    assert bench.first.is_closed, "its boxes go with it"
    await bench.until(lambda: bench.lost == ["runner-0"])
    assert bench.returned == [old]
    assert bench.moved == []
    assert list(bench.pool.processes()) == ["runner-1"]
    running.cancel()


async def test_what_a_runner_has_left_when_its_time_is_up_goes_on_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Leaving(monkeypatch)
    running = asyncio.create_task(bench.pool.run())
    old = await bench.play_on_the_first()
    bench.drains.note({"a": time.time() + runners.LEAVING_S + 0.05})
    await bench.until(lambda: bench.second.submitted == [old])
    assert bench.first.is_killed
    assert bench.lost == ["runner-0"]
    assert bench.moved == [old]
    running.cancel()


async def test_a_runner_whose_answer_is_lost_is_ended_before_others_play_what_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_broken = asyncio.Event()

    async def breaks() -> list[Trajectory]:
        await is_broken.wait()
        raise ActorUnavailableError("for a moment", None)

    bench = Leaving(monkeypatch)
    bench.first.ended = Method(breaks)
    running = asyncio.create_task(bench.pool.run())
    old = await bench.play_on_the_first()
    is_broken.set()
    await bench.until(lambda: bench.second.submitted == [old])
    assert bench.first.is_killed
    running.cancel()


DIED = RayActorError()
NO_BOX = RayTaskError("ready", "Traceback ...", BackendUnavailable("docker: cannot connect"))


class Starting:
    """One seat for runners, each of which starts or fails to, as `fates` say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *fates: FakeRunner | Exception) -> None:
        monkeypatch.setattr(runners, "START_PAUSES_S", (0.001, 0.001, 0.001))
        monkeypatch.setattr(ray, "kill", lambda runner: runner.kill())
        self._fates = iter(fates)
        self.lost: list[str] = []
        self.pool = RunnerPool(
            start_runner=self._start,
            num_runners=1,
            drains=Drains(own_node="own", grace_s=30.0),
            on_returned=lambda trajectory: None,
            on_lost=self._on_lost,
            recover=self._recover,
            on_decided=lambda group: None,
            silence_timeout_s=60.0,
            on_journal_failed=lambda lines: None,
        )

    async def _start(self, name: str) -> FakeRunner:
        fate = next(self._fates)
        if isinstance(fate, Exception):
            raise fate
        return fate

    async def _on_lost(self, name: str) -> None:
        self.lost.append(name)

    async def _recover(self, name: str, lost: Sequence[Attempt], error: str) -> Recovered:
        return Recovered([], [])

    async def run(self) -> str:
        """The name of the runner that is there in the end."""
        try:
            async with asyncio.timeout(30):
                return await beside(self._until_one_stays(), self.pool.run())
        finally:
            await asyncio.sleep(0)

    async def _until_one_stays(self) -> str:
        while True:
            await asyncio.sleep(0.005)
            for name, runner in self.pool.processes().items():
                if not runner.dies_later:
                    return name


@pytest.mark.parametrize("failures", [[DIED], [NO_BOX], [DIED, NO_BOX, ProcessLost("too slow")]])
async def test_a_successor_that_does_not_get_ready_has_a_successor_itself(
    monkeypatch: pytest.MonkeyPatch, failures: list[Exception]
) -> None:
    """Each under a name of its own: nobody knows how far the last one got."""
    bench = Starting(monkeypatch, FakeRunner(dies_later=True), *failures, FakeRunner())
    last = len(failures) + 1
    assert await bench.run() == f"runner-{last}"
    assert bench.lost == [f"runner-{number}" for number in range(last)]


async def test_the_first_runner_may_die_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await Starting(monkeypatch, DIED, FakeRunner()).run() == "runner-1"


async def test_what_keeps_the_first_runner_from_starting_is_for_a_person_to_mend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RayTaskError):
        await Starting(monkeypatch, NO_BOX, FakeRunner()).run()


async def test_runners_that_die_one_after_the_other_end_the_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ProcessLost, match="4 runners"):
        await Starting(monkeypatch, *[DIED] * 4).run()


@pytest.mark.timeout(60)
async def test_a_runner_that_does_not_answer_holds_no_worker_up_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Leaving(monkeypatch)
    monkeypatch.setattr(runners, "CONNECT_TIMEOUT_S", 0.01)
    bench.pool._runners, bench.pool._names = [bench.first, bench.second], ["first", "second"]
    bench.first.is_stopped = True
    await bench.pool.connect(address("worker-0"))
    assert bench.second.engines == ["worker-0"]


def address(worker_id: str) -> EngineAddress:
    return EngineAddress(worker_id=worker_id, generation=0, bucket="default", url=worker_id)


async def test_a_new_runner_knows_the_worker_that_became_ready_while_it_was_told_of_others() -> (
    None
):
    """It is in no pool yet, so the announcement of that worker passes it by."""
    there, late, told = [address("worker-2")], address("worker-1"), []

    class NewRunner:
        def __init__(self) -> None:
            self.connect = Method(self._connect)

        async def _connect(self, address: EngineAddress) -> None:
            told.append(address.worker_id)
            if address.worker_id == "worker-2":
                there.append(late)

    await introduce(NewRunner(), lambda: there)
    assert told == ["worker-2", "worker-1"]
