"""What every process of a run says of itself when asked, and which of them do not answer.

One inquiry serves both who watches over a run (the watchdog's last words) and who watches from
outside (the metrics endpoint). Nobody reports unasked, so an unwatched run pays nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ray.exceptions import RayError

from agentrl.engine.engine import EngineStats
from agentrl.runtime.link import Actor
from sandboxes.pool import PoolMetrics
from scheduler.events import Role
from scheduler.views import Demand, WorkerView

Answer = TypeVar("Answer")

ANSWER_TIMEOUT_S = 3.0
NUM_OLDEST = 3
"""Attempts that a runner names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus:
    demands: Mapping[Role, Demand]
    workers: Sequence[WorkerView]
    events: Mapping[str, int]
    """Since this coordinator was started, by kind."""
    decisions: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStatus:
    num_attempts: int
    oldest: Sequence[tuple[str, float]]
    """Attempts that run the longest, each with its seconds."""
    boxes: PoolMetrics | None
    """None when the environment uses none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """An answer of None: the process is gone or broken, or too busy or stuck to answer in time."""

    coordinator: CoordinatorStatus | None
    runners: Mapping[str, RunnerStatus | None]
    workers: Mapping[str, Sequence[EngineStats] | None]
    """The engine that a worker serves, or none."""


class Inquiry:
    """`runners` and `workers` name the processes there are at that moment."""

    def __init__(
        self,
        coordinator: Callable[[], Awaitable[CoordinatorStatus]],
        *,
        runners: Callable[[], Mapping[str, Actor]],
        workers: Callable[[], Mapping[str, Actor]],
    ) -> None:
        self._coordinator = coordinator
        self._runners = runners
        self._workers = workers

    async def make(self) -> RunStatus:
        """Ask everybody at once; takes `ANSWER_TIMEOUT_S` at most."""
        coordinator, runners, workers = await asyncio.gather(
            _answer(self._coordinator()),
            _answers({name: actor.status.remote() for name, actor in self._runners().items()}),
            _answers({name: actor.status.remote() for name, actor in self._workers().items()}),
        )
        return RunStatus(coordinator=coordinator, runners=runners, workers=workers)


async def _answers(asked: Mapping[str, Awaitable[Answer]]) -> dict[str, Answer | None]:
    answers = await asyncio.gather(*map(_answer, asked.values()))
    return dict(zip(asked, answers, strict=True))


async def _answer(asked: Awaitable[Answer]) -> Answer | None:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await asked
    except (TimeoutError, RayError):
        return None


def waits_of(status: RunStatus) -> list[str]:
    """What is waited for, one readable line each."""
    named = {"coordinator": status.coordinator, **status.workers, **status.runners}
    lines = [f"{name}, which does not answer" for name, answer in named.items() if answer is None]
    for name, runner in status.runners.items():
        if runner is not None:
            lines += [f"{name}: attempt {key}, for {age_s:.0f} s" for key, age_s in runner.oldest]
    if status.coordinator is not None:
        lines += [
            f"{role.value}: {demand.waiting} turns wait for a worker, {demand.decoding} run on "
            f"{sum(w.role is role for w in status.coordinator.workers)} worker(s), "
            f"{demand.resting} attempts are between turns"
            for role, demand in status.coordinator.demands.items()
        ]
    return lines
