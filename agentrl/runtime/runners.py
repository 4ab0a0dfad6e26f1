"""The driver's side of the runner actors: attempts out, trajectories back, lost runners replaced.

Attempts of a runner that dies go on in the next one where its journal allows it. Each of the others
comes back as an `infra_error`, so the group book decides what happens next. The scheduler is told
that their slots are free.

A runner whose machine is about to be taken away has a successor at once, and gets nothing new. What
it has not brought to its end shortly before the time is up is then treated like that of a dead one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import NoReturn

import ray
import structlog
from ray.exceptions import RayActorError, RayTaskError

from agentrl.engine.remote_client import CONNECT_TIMEOUT_S
from agentrl.record.journal import JournaledAttempt
from agentrl.rollout.attempt import Attempt
from agentrl.runtime.dispatch import EngineAddress
from agentrl.runtime.drains import Drains
from agentrl.runtime.failures import ProcessLost, in_short
from agentrl.runtime.journals import Recovered
from agentrl.runtime.lifeline import answer_or_kill
from agentrl.runtime.link import Actor
from agentrl.runtime.progress import Standing
from agentrl.runtime.runner import POLL_S
from agentrl.types import Group, Trajectory

log = structlog.get_logger(__name__)

Beginning = tuple[Attempt, JournaledAttempt | None]
"""An attempt to be played, and what is known of it from a process that was lost."""
RUNNER_POLL_S = 1.0
"""How often a group that waits to be compared looks for a runner, when there is none, and how often
it is looked whether a runner that leaves has done all it had."""
START_PAUSES_S = (1.0, 5.0, 25.0)
"""Before another runner starts, where one after the other does not get ready: a sandbox engine that
restarts is there again by then."""
LEAVING_S = 3.0
"""Before its machine is taken away, for a runner's attempts to be begun elsewhere."""


async def introduce(runner: Actor, addresses: Callable[[], Sequence[EngineAddress]]) -> None:
    """Tell a runner of every engine there is, also of those that become ready meanwhile: whoever is
    in no pool yet hears no announcement. Returns in the same step in which none was missing."""
    known: set[EngineAddress] = set()
    while missing := [address for address in addresses() if address not in known]:
        await asyncio.gather(*(runner.connect.remote(address) for address in missing))
        known.update(missing)


async def _tell_of(address: EngineAddress, name: str, runner: Actor) -> None:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await runner.connect.remote(address)
    except RayActorError:
        pass  # its successor is told of all engines
    except TimeoutError:
        log.warning(
            "a runner does not answer, and a worker begins without it",
            runner=name,
            worker=address.worker_id,
        )


class RunnerPool:
    """`run()` must be running for trajectories to come back."""

    def __init__(
        self,
        *,
        start_runner: Callable[[str], Awaitable[Actor]],
        num_runners: int,
        drains: Drains,
        on_returned: Callable[[Trajectory], None],
        on_lost: Callable[[str], Awaitable[None]],
        recover: Callable[[str, Sequence[Attempt], str], Awaitable[Recovered]],
        on_decided: Callable[[Group], None],
        silence_timeout_s: float,
        on_journal_failed: Callable[[int], None],
    ) -> None:
        """`start_runner(name)` gives a runner that is ready, or raises what Ray raises, or
        `ProcessLost`; called again when one is lost, with another name, after
        `recover(name, attempts, error)` has said what becomes of its attempts.
        `on_journal_failed` is told how many lines of living runners' journals were not written."""
        self._start_runner = start_runner
        self._drains = drains
        self._on_returned = on_returned
        self._on_lost = on_lost
        self._recover = recover
        self._on_decided = on_decided
        self._silence_timeout_s = silence_timeout_s + POLL_S
        self._on_journal_failed = on_journal_failed
        self._runners: list[Actor | None] = [None] * num_runners
        self._names = [""] * num_runners
        self._leaving: dict[str, Actor] = {}
        """Those whose successors are there or on their way, by name."""
        self._contests: Counter[str] = Counter()
        """Groups that are being compared, by runner."""
        self._out: list[dict[str, Attempt]] = [{} for _ in range(num_runners)]
        self._to_submit: list[list[Beginning]] = [[] for _ in range(num_runners)]
        self._undecided: asyncio.Queue[Group] = asyncio.Queue()
        self._standings: asyncio.Queue[tuple[Standing, Standing]] = asyncio.Queue()
        self._news = asyncio.Event()
        self._serials = count()
        self._was_one_ready = False

    def submit(self, attempt: Attempt, past: JournaledAttempt | None = None) -> None:
        """Hand an attempt to the runner with the fewest; it is sent by `run()`."""
        number = min(range(len(self._out)), key=lambda n: len(self._out[n]))
        self._out[number][attempt.trajectory_id] = attempt
        self._to_submit[number].append((attempt, past))
        self._news.set()

    def settle(self, checkpoint: Standing, now: Standing) -> None:
        """Let the runners forget what training is done with."""
        self._standings.put_nowait((checkpoint, now))

    def decide(self, group: Group) -> None:
        """Let a judge compare the members of a group; it comes back by `on_decided`."""
        self._undecided.put_nowait(group)

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send())
            tasks.create_task(self._decide_all())
            tasks.create_task(self._settle_all())
            for number in range(len(self._runners)):
                tasks.create_task(self._keep(number))
        raise AssertionError("all loops are endless")

    def processes(self) -> dict[str, Actor]:
        """Those that run, by name."""
        seats = zip(self._names, self._runners, strict=True)
        return self._leaving | {name: runner for name, runner in seats if runner is not None}

    async def connect(self, address: EngineAddress) -> None:
        """Tell every runner where a worker's engine can be reached, and give each the time to dial
        it; one that needs more rejects what is placed there until it is through."""
        living = self.processes().items()
        await asyncio.gather(*(_tell_of(address, name, runner) for name, runner in living))

    async def close(self) -> None:
        """Close what still lives; a runner that is gone has nothing left to close."""
        while not self._standings.empty():
            await self._settle_one(*self._standings.get_nowait())
        closing = [runner.close.remote() for runner in self.processes().values()]
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, RayActorError):
                log.warning("a runner did not close well", error=str(result))

    async def _send(self) -> NoReturn:
        while True:
            await self._news.wait()
            self._news.clear()
            for number, runner in enumerate(self._runners):
                if runner is not None and self._to_submit[number]:
                    attempts, self._to_submit[number] = self._to_submit[number], []
                    runner.submit.remote(attempts)

    async def _settle_all(self) -> NoReturn:
        while True:
            await self._settle_one(*await self._standings.get())

    async def _settle_one(self, checkpoint: Standing, now: Standing) -> None:
        """A runner that is lost forgets nothing; its successor is told the next time."""
        living = self.processes().values()
        settled = await asyncio.gather(
            *(runner.settle.remote(checkpoint, now) for runner in living), return_exceptions=True
        )
        self._on_journal_failed(sum(failed for failed in settled if isinstance(failed, int)))

    async def _decide_all(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._decide(await self._undecided.get()))

    async def _decide(self, group: Group) -> None:
        while True:
            numbers = [number for number, runner in enumerate(self._runners) if runner is not None]
            if numbers:
                number = min(numbers, key=lambda number: len(self._out[number]))
                runner, name = self._runners[number], self._names[number]
                assert runner is not None
                self._contests[name] += 1
                try:
                    return self._on_decided(await runner.decide.remote(group))
                except RayActorError:
                    log.warning("a runner was lost; another one compares", group=group.group_id)
                finally:
                    self._contests[name] -= 1
            await asyncio.sleep(RUNNER_POLL_S)

    async def _keep(self, number: int) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            while True:
                name, runner = await self._start()
                self._runners[number], self._names[number] = runner, name
                self._news.set()
                out = self._out[number]
                life = tasks.create_task(self._fetch(name, runner, out))
                warned = tasks.create_task(self._notice(runner))
                await asyncio.wait({life, warned}, return_when=asyncio.FIRST_COMPLETED)
                grace_s = None if life.done() else warned.result()
                warned.cancel()
                if grace_s is None:
                    error = await life
                    self._runners[number] = None
                    self._out[number], self._to_submit[number] = {}, []
                    await self._go_on(name, out, error)
                else:
                    self._runners[number] = None
                    unsent = [attempt.trajectory_id for attempt, _ in self._to_submit[number]]
                    self._out[number] = {key: out.pop(key) for key in unsent}
                    tasks.create_task(self._see_off(name, runner, out, life, grace_s))

    async def _start(self) -> tuple[str, Actor]:
        """A runner that is ready. One that does not get there has a successor, a few times.

        But what the first of all says is raised at once: a person has to mend that.
        """
        for pause_s in (*START_PAUSES_S, None):
            name = f"runner-{next(self._serials)}"
            try:
                return name, await self._start_one(name)
            except RayActorError as error:
                reason = in_short(error)
                if pause_s is None:
                    raise ProcessLost(
                        f"{len(START_PAUSES_S) + 1} runners, one after the other, died as they "
                        f"started: {reason}"
                    ) from error
            except (RayTaskError, ProcessLost) as error:
                if pause_s is None or not self._was_one_ready:
                    raise
                reason = in_short(error.cause if isinstance(error, RayTaskError) else error)
            log.warning("a runner did not start", runner=name, reason=reason)
            await self._go_on(name, {}, reason)
            await asyncio.sleep(pause_s)
        raise AssertionError("the last one has started, or raised")

    async def _start_one(self, name: str) -> Actor:
        runner = await self._start_runner(name)
        self._was_one_ready = True
        return runner

    async def _fetch(self, name: str, runner: Actor, out: dict[str, Attempt]) -> str:
        """Bring back what has ended, until the runner is gone; returns what is known of that.

        One whose answer was lost is ended: so is what it had to say, and others play its attempts.
        """
        try:
            while True:
                ended = await answer_or_kill(
                    name,
                    runner,
                    runner.ended.remote(),
                    silence_timeout_s=self._silence_timeout_s,
                )
                for trajectory in ended or ():
                    out.pop(trajectory.trajectory_id, None)
                    self._on_returned(trajectory)
        except RayActorError as error:
            ray.kill(runner)
            return in_short(error)

    async def _notice(self, runner: Actor) -> float | None:
        """The seconds that a runner has left, when it must go; None when it is gone."""
        try:
            return await self._drains.of(await runner.node_id.remote())
        except RayActorError:
            return None

    async def _see_off(
        self,
        name: str,
        runner: Actor,
        out: dict[str, Attempt],
        life: asyncio.Task[str],
        grace_s: float,
    ) -> None:
        """Let a runner do what it has while there is time; the rest goes on elsewhere."""
        log.info("a runner will be taken away", runner=name, attempts=len(out), grace_s=grace_s)
        self._leaving[name] = runner
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s - LEAVING_S
        while (out or self._contests[name]) and loop.time() < until and not life.done():
            await asyncio.wait({life}, timeout=min(RUNNER_POLL_S, until - loop.time()))
        if not life.done():
            life.cancel()
            await self._end(name, runner)
        del self._leaving[name]
        await self._go_on(name, out, "its machine was taken away")

    async def _end(self, name: str, runner: Actor) -> None:
        """Its boxes go with it, unless somebody still waits for its word."""
        if not self._contests[name]:
            with suppress(RayActorError, TimeoutError):
                async with asyncio.timeout(LEAVING_S):
                    await runner.close.remote()
        ray.kill(runner)

    async def _go_on(self, name: str, lost: dict[str, Attempt], error: str) -> None:
        await self._on_lost(name)
        recovered = await self._recover(name, list(lost.values()), error)
        for trajectory in recovered.ended:
            self._on_returned(trajectory)
        for attempt, past in recovered.under_way:
            self.submit(attempt, past)
