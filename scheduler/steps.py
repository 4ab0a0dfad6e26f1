"""Optimizer steps of each job: which batch waits, which step runs, and who takes part.

A step begins with all training workers there are, at the largest valid size, once nobody is on its
way to join them: all ranks or none. From then until `StepEnded` none of them may leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.decisions import StartStep
from scheduler.events import BatchReady, RunStarted, StepEnded, StepStarted
from scheduler.views import AdmissionView, TrainingView


@dataclass(slots=True)
class _Job:
    began_t: float
    batch: BatchReady | None = None
    is_running: bool = False
    num_workers: int = 0
    tokens: int = 0
    last_step_s: float | None = None


class Steps:
    def __init__(self, sizes: Sequence[int] = ()) -> None:
        """`sizes`: numbers of workers that can train together; empty: any."""
        self._sizes = sorted(sizes)
        self._jobs: dict[str, _Job] = {}

    def update(self, event: RunStarted | BatchReady | StepStarted | StepEnded) -> None:
        job = self._jobs.setdefault(event.job, _Job(event.t))
        match event:
            case RunStarted():
                pass
            case BatchReady():
                job.batch, job.is_running, job.tokens = event, False, event.tokens
            case StepStarted():
                job.is_running, job.began_t = True, event.t
            case StepEnded():
                job.is_running, job.last_step_s = False, event.seconds

    def is_running(self, job: str) -> bool:
        return job in self._jobs and self._jobs[job].is_running

    def is_needed(self, job: str) -> bool:
        """Whether a batch waits for its step, or the step runs."""
        known = self._jobs.get(job)
        return known is not None and (known.is_running or known.batch is not None)

    @property
    def smallest(self) -> int:
        return self._sizes[0] if self._sizes else 1

    def waiting(self) -> list[str]:
        """Jobs whose batch waits for its step."""
        return [name for name, job in self._jobs.items() if job.batch is not None]

    def start(self, t: float, name: str, workers: Sequence[str]) -> StartStep | None:
        """Begin the step of the batch that waits, with as many of `workers` as are valid."""
        job = self._jobs[name]
        assert job.batch is not None, f"no batch of {name} waits"
        size = self._largest(len(workers))
        if size == 0:
            return None
        start = StartStep(t=t, job=name, step=job.batch.step, workers=tuple(workers[:size]))
        job.batch, job.is_running, job.num_workers = None, True, size
        return start

    def _largest(self, num_workers: int) -> int:
        if not self._sizes:
            return num_workers
        return max((size for size in self._sizes if size <= num_workers), default=0)

    def views(self, counters: Mapping[str, AdmissionView]) -> dict[str, TrainingView]:
        return {
            name: TrainingView(
                version=counters[name].version,
                accepted_groups=counters[name].accepted_groups,
                running_groups=counters[name].running_groups,
                batch_tokens=None if job.batch is None else job.batch.tokens,
                is_running=job.is_running,
                began_t=job.began_t,
                last_step_s=job.last_step_s,
                last_step_workers=job.num_workers,
                last_step_tokens=job.tokens,
            )
            for name, job in self._jobs.items()
            if name in counters
        }
