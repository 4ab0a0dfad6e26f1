"""What must hold of workers and their handoffs in every log; part of `scheduler.invariants`.

- an accelerator has at most one owner: from a ready report or an ACQUIRE order, until the RELEASE
  that its owner reports, or the owner's death;
- a worker has at most one open handoff; orders carry its generation, in the order of stages;
- every handoff ends within the sum of its deadlines;
- a training worker leaves only between steps; a step begins with workers that serve training;
- a role that has work is never left without a worker by a shift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.decisions import (
    CancelShift,
    Duty,
    HandoffEnded,
    HandoffOrder,
    Outcome,
    Shift,
    StartStep,
)
from scheduler.events import (
    BatchReady,
    Event,
    HandoffStage,
    Role,
    Stage,
    StepEnded,
    WorkerEvent,
    WorkerLost,
    WorkerReady,
)
from scheduler.handoff import DEADLINES_S
from scheduler.shifts import duty_of

_RANKS = {stage: rank for rank, stage in enumerate(Stage)}


class InvariantBroken(AssertionError):
    """A rule that holds in every log did not; the message names rule, subject and event."""


def require(holds: bool, rule: str, subject: object) -> None:
    if not holds:
        raise InvariantBroken(f"{rule}: {subject}")


@dataclass(slots=True)
class _Handoff:
    generation: int
    source: Duty
    target: Duty
    began_t: float
    stage: Stage = Stage.QUIESCE


@dataclass(slots=True)
class HandoffRules:
    """Fed by the checker, before its own books change."""

    tick_s: float = 5.0
    """The longest time between two ticks: a deadline is noticed that much later."""
    _duties: dict[str, Duty] = field(default_factory=dict)
    """Of workers that serve, by their own reports."""
    _serving: dict[str, int] = field(default_factory=dict)
    """Generation under which a worker's turns run, until it releases or is lost."""
    _generations: dict[str, int] = field(default_factory=dict)
    _owners: dict[str, str] = field(default_factory=dict)
    _open: dict[str, _Handoff] = field(default_factory=dict)
    _batches: dict[str, int] = field(default_factory=dict)
    """The step whose batch waits, by job."""
    _training: dict[str, frozenset[tuple[str, int]]] = field(default_factory=dict)
    """Who takes part in the step that runs, by job: workers and their generations."""
    num_ended: Counter[Outcome] = field(default_factory=Counter)

    @property
    def num_open(self) -> int:
        return len(self._open)

    def generation(self, worker_id: str) -> int:
        """The newest that is known of a worker; -1: none."""
        return self._generations.get(worker_id, -1)

    def see(self, event: Event) -> None:
        match event:
            case BatchReady():
                self._batches[event.job] = event.step
                self._training.pop(event.job, None)
            case StepEnded():
                self._training.pop(event.job, None)
            case WorkerEvent():
                self._see_worker(event)
            case _:
                pass
        limit_s = sum(DEADLINES_S.values()) + self.tick_s * len(Stage)
        for name, handoff in self._open.items():
            require(event.t - handoff.began_t <= limit_s, f"a handoff of {name} never ends", event)

    def _see_worker(self, event: WorkerEvent) -> None:
        name = event.worker_id
        match event:
            case WorkerReady() if event.generation >= self.generation(name):
                is_known = event.generation == self.generation(name) and name in self._duties
                if is_known and name not in self._open:
                    return
                self._free(name)
                for accelerator in duty_of(event).accelerators:
                    owner = self._owners.setdefault(accelerator, name)
                    require(owner == name, f"{accelerator} of {owner} got a second owner", event)
                self._duties[name] = duty_of(event)
                self._serving[name] = self._generations[name] = event.generation
            case WorkerLost() if event.generation >= self._serving.get(name, self.generation(name)):
                self._free(name)
                self._duties.pop(name, None)
                self._serving.pop(name, None)
            case HandoffStage(stage=Stage.RELEASE):
                handoff = self._open.get(name)
                asked = (event.generation, event.stage)
                if handoff is not None and (handoff.generation, handoff.stage) == asked:
                    self._free(name)
            case _:
                pass

    def _free(self, name: str) -> None:
        self._owners = {what: who for what, who in self._owners.items() if who != name}

    # ----------------------------------------------------------------------------- decisions

    def shift(self, shift: Shift) -> None:
        name = shift.worker_id
        require(name not in self._open, "a worker got a second handoff", shift)
        require(
            shift.worker_generation == self.generation(name) == shift.generation - 1,
            "a shift is based on an old generation",
            shift,
        )
        is_busy = any((name, shift.worker_generation) in who for who in self._training.values())
        require(not is_busy, "a training worker left in the middle of a step", shift)
        self._duties.pop(name, None)
        self._generations[name] = shift.generation
        self._open[name] = _Handoff(shift.generation, shift.source, shift.target, shift.t)

    def check_minimums(
        self, demands: Mapping[tuple[str, Role], int], left: set[tuple[str, Role]], subject: object
    ) -> None:
        """After all decisions of an event: roles that were left by shifts still have somebody."""
        for job, role in left:
            duties = [*self._duties.values(), *(handoff.target for handoff in self._open.values())]
            present = any((d.job, d.role) == (job, role) and d.accelerators for d in duties)
            needed = demands.get((job, role), 0) > 0
            if role is Role.TRAINING:
                needed = job in self._batches or job in self._training
            require(present or not needed, f"{role} has work and nobody left", subject)

    def cancel(self, cancel: CancelShift) -> tuple[str, Role]:
        """The role that the worker was on its way to."""
        handoff = self._open.get(cancel.worker_id)
        require(handoff is not None, "a cancel without a handoff", cancel)
        assert handoff is not None
        require(handoff.generation == cancel.generation, "an old handoff was called off", cancel)
        was = handoff.target
        if handoff.stage in (Stage.QUIESCE, Stage.RELEASE, Stage.ACQUIRE):
            handoff.target = handoff.source
        return was.job, was.role

    def order(self, order: HandoffOrder) -> None:
        handoff = self._open.get(order.worker_id)
        require(handoff is not None, "an order without a handoff", order)
        assert handoff is not None
        if order.stage is Stage.RESTART:
            require(order.generation == handoff.generation + 1, "a restart is no new one", order)
            handoff.generation = self._generations[order.worker_id] = order.generation
        require(order.generation == handoff.generation, "an order of an old generation", order)
        require(_RANKS[order.stage] >= _RANKS[handoff.stage], "stages went backwards", order)
        handoff.stage, handoff.target = order.stage, order.duty
        if order.stage in (Stage.RELEASE, Stage.RESTART):
            self._serving.pop(order.worker_id, None)
        if order.stage is Stage.ACQUIRE:
            for accelerator in order.duty.accelerators:
                owner = self._owners.setdefault(accelerator, order.worker_id)
                require(owner == order.worker_id, f"{accelerator} belongs to {owner}", order)

    def ended(self, ended: HandoffEnded) -> None:
        handoff = self._open.pop(ended.worker_id, None)
        require(handoff is not None, "a handoff ended twice", ended)
        self.num_ended[ended.outcome] += 1
        if ended.outcome is Outcome.ROLLED_BACK:
            self._generations[ended.worker_id] = ended.generation

    def start_step(self, start: StartStep) -> None:
        step = self._batches.pop(start.job, None)
        require(step == start.step, "a step began without its batch", start)
        require(len(start.workers) > 0, "a step began with nobody", start)
        for worker_id in start.workers:
            duty = self._duties.get(worker_id)
            is_there = duty is not None and (duty.role, duty.job) == (Role.TRAINING, start.job)
            require(is_there, f"{worker_id} does not serve training", start)
        self._training[start.job] = frozenset(
            (worker_id, self.generation(worker_id)) for worker_id in start.workers
        )
