"""Optimizer steps in a simulated cluster: batches fill, steps take time, versions appear.

Trained by workers outside the fleet in a fixed time, or by the fleet's training workers at a cost
that falls with their number; then the scheduler says who takes part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

from scheduler.decisions import StartStep
from scheduler.events import BatchReady, Published, StepEnded, StepStarted
from scheduler.sim.agenda import Agenda
from scheduler.sim.attempts import Send
from scheduler.sim.hosts import Server
from scheduler.sim.specs import ClusterResult, StepSpec


class Trainer:
    """`published` is told each new version, before the scheduler is asked for more."""

    def __init__(
        self,
        *,
        agenda: Agenda,
        send: Send,
        steps: StepSpec,
        result: ClusterResult,
        published: Callable[[int], None],
        is_up: Callable[[str], bool],
    ) -> None:
        self._agenda = agenda
        self._send = send
        self._steps = steps
        self._result = result
        self._published = published
        self._is_up = is_up
        self._ready: deque[int] = deque()
        """Tokens of groups accepted and not yet trained on."""
        self._batch_tokens = 0
        self._is_busy = False
        self._workers: tuple[str, ...] = ()
        self._attempt = 0
        """Of steps; one that was lost does not end."""
        self.version = 0

    def group_ready(self, tokens: int) -> None:
        self._ready.append(tokens)
        self._begin_if_ready()

    def _begin_if_ready(self) -> None:
        if self._is_busy or len(self._ready) < self._steps.groups_per_step:
            return
        self._is_busy = True
        taken = [self._ready.popleft() for _ in range(self._steps.groups_per_step)]
        self._batch_tokens = sum(taken)
        if self._steps.training is None:
            self._begin(self._steps.train_seconds)
        else:
            self._send(BatchReady, step=self.version, tokens=self._batch_tokens)

    def start(self, start: StartStep) -> None:
        """The fleet's workers are there."""
        assert self._steps.training is not None
        self._workers = start.workers
        seconds = self._steps.training.seconds(self._batch_tokens, len(start.workers))
        self._begin(seconds if all(map(self._is_up, start.workers)) else inf)

    def _begin(self, seconds: float) -> None:
        self._attempt += 1
        if self._workers:
            self._agenda.now(self._say_started)
        else:
            self._say_started()
        if seconds < inf:
            self._agenda.after(seconds, self._ended, self._attempt, seconds)

    def _say_started(self) -> None:
        self._send(StepStarted, step=self.version)

    def died(self, server: Server) -> None:
        if server.spec.worker_id in self._workers:
            self._attempt += 1

    def lost(self, server: Server) -> None:
        """It is known that a worker that takes part died: the step is done over."""
        if server.spec.worker_id in self._workers:
            self._workers = ()
            self._attempt += 1
            self._send(BatchReady, step=self.version, tokens=self._batch_tokens)

    def _ended(self, attempt: int, seconds: float) -> None:
        if attempt != self._attempt:
            return
        self._result.train_seconds += seconds * len(self._workers)
        self._is_busy, self._workers = False, ()
        self._result.step_ends.append(self._agenda.t)
        self._send(StepEnded, step=self.version, seconds=seconds)
        self.version += 1
        self._send(Published, version=self.version)
        self._published(self.version)
        self._begin_if_ready()
