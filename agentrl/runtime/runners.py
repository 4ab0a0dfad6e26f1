"""The driver's side of the runner actors: attempts out, trajectories back, lost runners replaced.

A runner that dies takes its attempts with it. Each of them comes back as an `infra_error`, so the
group book decides what happens next, and the scheduler is told that their slots are free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import NoReturn

import structlog
from ray.exceptions import RayActorError

from agentrl.rollout.attempt import Attempt
from agentrl.runtime.dispatch import EngineAddress
from agentrl.runtime.lifeline import answer_or_kill
from agentrl.runtime.link import Actor
from agentrl.runtime.runner import POLL_S
from agentrl.types import Group, Outcome, StopReason, Trajectory

log = structlog.get_logger(__name__)

RUNNER_POLL_S = 1.0
"""How often a group that waits to be compared looks for a runner, when there is none."""


class RunnerPool:
    """`run()` must be running for trajectories to come back."""

    def __init__(
        self,
        *,
        start_runner: Callable[[str], Awaitable[Actor]],
        num_runners: int,
        on_returned: Callable[[Trajectory], None],
        on_lost: Callable[[str], Awaitable[None]],
        on_decided: Callable[[Group], None],
        silence_timeout_s: float,
    ) -> None:
        """`start_runner(name)` gives a runner that is ready; called again when one is lost, with
        another name."""
        self._start_runner = start_runner
        self._on_returned = on_returned
        self._on_lost = on_lost
        self._on_decided = on_decided
        self._silence_timeout_s = silence_timeout_s + POLL_S
        self._runners: list[Actor | None] = [None] * num_runners
        self._out: list[dict[str, Attempt]] = [{} for _ in range(num_runners)]
        self._to_submit: list[list[Attempt]] = [[] for _ in range(num_runners)]
        self._undecided: asyncio.Queue[Group] = asyncio.Queue()
        self._news = asyncio.Event()
        self._serials = count()

    def submit(self, attempt: Attempt) -> None:
        """Hand an attempt to the runner with the fewest; it is sent by `run()`."""
        number = min(range(len(self._out)), key=lambda n: len(self._out[n]))
        self._out[number][attempt.trajectory_id] = attempt
        self._to_submit[number].append(attempt)
        self._news.set()

    def decide(self, group: Group) -> None:
        """Let a judge compare the members of a group; it comes back by `on_decided`."""
        self._undecided.put_nowait(group)

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send())
            tasks.create_task(self._decide_all())
            for number in range(len(self._runners)):
                tasks.create_task(self._keep(number))
        raise AssertionError("all loops are endless")

    def processes(self) -> dict[str, Actor]:
        """Those that run, by name."""
        return {f"runner-{n}": actor for n, actor in enumerate(self._runners) if actor is not None}

    async def connect(self, address: EngineAddress) -> None:
        """Tell every runner where a worker's engine can be reached."""
        for runner in self._runners:
            if runner is not None:
                # one that dies in this moment is told of all engines when it is replaced
                with suppress(RayActorError):
                    await runner.connect.remote(address)

    async def close(self) -> None:
        """Close what still lives; a runner that is gone has nothing left to close."""
        closing = [runner.close.remote() for runner in self._runners if runner is not None]
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

    async def _decide_all(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._decide(await self._undecided.get()))

    async def _decide(self, group: Group) -> None:
        while True:
            numbers = [number for number, runner in enumerate(self._runners) if runner is not None]
            if numbers:
                runner = self._runners[min(numbers, key=lambda number: len(self._out[number]))]
                assert runner is not None
                try:
                    return self._on_decided(await runner.decide.remote(group))
                except RayActorError:
                    log.warning("a runner was lost; another one compares", group=group.group_id)
            await asyncio.sleep(RUNNER_POLL_S)

    async def _keep(self, number: int) -> NoReturn:
        while True:
            name = f"runner-{next(self._serials)}"
            runner = await self._start_runner(name)
            self._runners[number] = runner
            self._news.set()
            try:
                while True:
                    ended = await answer_or_kill(
                        f"runner-{number}",
                        runner,
                        runner.ended.remote(),
                        silence_timeout_s=self._silence_timeout_s,
                    )
                    for trajectory in ended or ():
                        self._out[number].pop(trajectory.trajectory_id, None)
                        self._on_returned(trajectory)
            except RayActorError as error:
                log.warning("a runner was lost; its attempts are tried again", runner=name)
                self._runners[number] = None
                await self._on_lost(name)
                self._give_up(number, str(error))

    def _give_up(self, number: int, error: str) -> None:
        lost, self._out[number] = self._out[number], {}
        self._to_submit[number] = []
        for attempt in lost.values():
            self._on_returned(lost_trajectory(attempt, error))


def lost_trajectory(attempt: Attempt, error: str) -> Trajectory:
    """What stands in the record for an attempt whose runner is gone."""
    return Trajectory(
        trajectory_id=attempt.trajectory_id,
        task_id=attempt.task.id,
        group_id=attempt.group_id,
        sibling=attempt.sibling,
        attempt=attempt.attempt,
        split=attempt.split,
        stop_reason=StopReason.INFRA_ERROR,
        outcome=Outcome.INFRA_ERROR,
        error=error,
    )
