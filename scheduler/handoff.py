"""How one worker changes role or bucket while everybody else goes on.

    SERVING(A) -> QUIESCE -> RELEASE -> ACQUIRE -> LOAD(version) -> WARM -> SERVING(B)

`begin` raises the worker's generation and takes it out of service in the same step; nothing waits,
neither other workers, nor the trainer, nor whoever decided it. Messages that do not carry the
handoff's generation change nothing. QUIESCE can be cancelled or run out of time at no cost: the
worker serves A again. From RELEASE on there is no way back: running out of time restarts the worker
straight into B, and a cancel becomes a reverse handoff: A's context is loaded instead of B's, or,
when B's is being loaded already, the worker is to be handed back once B serves (`take_returning`).

A restart that does not answer leaves the outcome unknown: the handoff is over, the worker keeps
its lease, and nobody else gets the accelerators until `worker_lost` says that it is dead. So every
handoff ends within the sum of its deadlines, and an accelerator never has two owners.

A worker that will be taken away (`evict`) keeps what it owns until it is lost: its accelerators go
with it. The book decides; a driver carries out its orders and reports back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from scheduler.decisions import Duty, HandoffEnded, HandoffOrder, Outcome, Shift
from scheduler.events import Role, Stage
from scheduler.leases import Accelerator, Leases

_LEAVING = (Stage.QUIESCE, Stage.RELEASE)
"""In these stages a worker still owns what others may already claim."""


Answer = Shift | HandoffOrder | HandoffEnded

DEADLINES_S: Mapping[Stage, float] = {
    Stage.QUIESCE: 60.0,
    Stage.RELEASE: 30.0,
    Stage.ACQUIRE: 180.0,
    Stage.LOAD: 180.0,
    Stage.WARM: 120.0,
    Stage.RESTART: 300.0,
}
"""Beyond a cold model load of 20-30 s; PivotRL saw false time-outs at 60 s."""


@dataclass(slots=True)
class _Handoff:
    worker_id: str
    generation: int
    origin: Duty
    target: Duty
    began_t: float
    stage: Stage
    deadline_t: float
    is_ordered: bool = True
    """False: ACQUIRE waits for others to release."""
    returns: bool = False
    """Cancelled too late: hand back as soon as it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShift:
    """A worker on its way from one duty to another."""

    worker_id: str
    source: Duty
    target: Duty
    stage: Stage
    began_t: float


@dataclass(slots=True)
class _Worker:
    generation: int
    duty: Duty


@dataclass(slots=True)
class HandoffBook:
    """All workers, all open handoffs and all leases."""

    deadlines_s: Mapping[Stage, float] = field(default_factory=lambda: DEADLINES_S)
    max_version_lag: int = 0
    """How far behind the newest weights a load may have ended without being repeated."""
    leases: Leases = field(default_factory=Leases)
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _open: dict[str, _Handoff] = field(default_factory=dict)
    _departing: set[str] = field(default_factory=set)
    """Workers that will be taken away, or do not answer; nothing begins with them any more."""
    _returning: dict[str, Duty] = field(default_factory=dict)
    """Workers that serve what was called off too late, and what they served before."""
    _newest: dict[str, int] = field(default_factory=dict)
    """Version of the newest weights, by job."""

    def join(self, worker_id: str, generation: int, duty: Duty) -> None:
        """A worker serves: at start, or again after it was lost."""
        assert worker_id not in self._open, f"{worker_id} joins in the middle of a handoff"
        self._departing.discard(worker_id)
        self.leases.release(worker_id)
        self.leases.take(worker_id, duty.accelerators)
        self._workers[worker_id] = _Worker(generation, duty)

    def evict(self, worker_id: str) -> None:
        """Nothing begins with this worker until it joins again; it keeps its accelerators."""
        self._departing.add(worker_id)

    def is_departing(self, worker_id: str) -> bool:
        return worker_id in self._departing

    def generation(self, worker_id: str) -> int | None:
        """None: not known, or not any more."""
        worker = self._workers.get(worker_id)
        return None if worker is None else worker.generation

    def stage(self, worker_id: str) -> Stage | None:
        """Of its open handoff."""
        handoff = self._open.get(worker_id)
        return None if handoff is None else handoff.stage

    def duty(self, worker_id: str) -> Duty:
        """What it serves, or is on its way to serve."""
        handoff = self._open.get(worker_id)
        return self._workers[worker_id].duty if handoff is None else handoff.target

    def is_serving(self, worker_id: str) -> bool:
        is_free = worker_id not in self._open and worker_id not in self._departing
        return is_free and worker_id in self._workers

    def open_shifts(self) -> tuple[OpenShift, ...]:
        return tuple(
            OpenShift(
                worker_id=name,
                source=handoff.origin,
                target=handoff.target,
                stage=handoff.stage,
                began_t=handoff.began_t,
            )
            for name, handoff in self._open.items()
        )

    def take_returning(self) -> dict[str, Duty]:
        """Workers to be handed back now that they serve, and to what; each is told once."""
        returning, self._returning = self._returning, {}
        return {name: duty for name, duty in returning.items() if self.is_serving(name)}

    def spares(self) -> dict[str, Duty]:
        """Retired workers, and what they served last; they can be given accelerators again."""
        return {
            name: worker.duty
            for name, worker in self._workers.items()
            if not worker.duty.accelerators and self.is_serving(name)
        }

    def _version_of(self, duty: Duty) -> int:
        return 0 if duty.role is Role.GENRM else self._newest.get(duty.job, 0)

    @property
    def num_open(self) -> int:
        return len(self._open)

    def published(self, job: str, version: int) -> None:
        self._newest[job] = version

    def refusal(self, moves: Mapping[str, Duty]) -> str | None:
        """Why these moves cannot begin together now; None when they can."""
        leaving = {*moves, *(h.worker_id for h in self._open.values() if h.stage in _LEAVING)}
        wanted: set[Accelerator] = set()
        for worker_id, target in moves.items():
            if not self.is_serving(worker_id):
                return f"{worker_id} is not serving"
            if wanted & target.accelerators:
                return f"two workers want {sorted(wanted & target.accelerators)}"
            wanted |= target.accelerators
            reason = self.leases.conflict(worker_id, target.accelerators, leaving)
            if reason is not None:
                return reason
        return None

    def begin(self, t: float, moves: Mapping[str, Duty]) -> list[Answer]:
        """Take workers out of service, each towards its new duty. Returns at once.

        A duty without accelerators retires a worker; it can be given some later.
        """
        reason = self.refusal(moves)
        assert reason is None, reason
        answers: list[Answer] = []
        for worker_id, target in moves.items():
            worker = self._workers[worker_id]
            worker.generation += 1
            self.leases.claim(worker_id, target.accelerators)
            handoff = _Handoff(
                worker_id, worker.generation, worker.duty, target, t, Stage.QUIESCE, inf
            )
            self._open[worker_id] = handoff
            answers += [self._shift(t, handoff), self._order(t, handoff, Stage.QUIESCE)]
        return answers

    def done(
        self, t: float, worker_id: str, generation: int, stage: Stage, version: int = 0
    ) -> list[Answer]:
        """A stage is carried out; `version` is what LOAD has loaded."""
        handoff = self._open.get(worker_id)
        if handoff is None or handoff.generation != generation or handoff.stage is not stage:
            return []
        match stage:
            case Stage.QUIESCE:
                return [self._order(t, handoff, Stage.RELEASE)]
            case Stage.RELEASE:
                self.leases.release(worker_id)
                return self._released(t, handoff)
            case Stage.ACQUIRE:
                return [self._order(t, handoff, Stage.LOAD)]
            case Stage.LOAD if version < self._version_of(handoff.target) - self.max_version_lag:
                deadline_t = handoff.deadline_t
                order = self._order(t, handoff, Stage.LOAD)
                handoff.deadline_t = deadline_t
                return [replace(order, deadline_t=deadline_t)]
            case Stage.LOAD:
                return [self._order(t, handoff, Stage.WARM)]
            case Stage.WARM:
                return self._serve(t, handoff, Outcome.COMPLETED)
            case Stage.RESTART:
                return self._serve(t, handoff, Outcome.RESTARTED)

    def cancel(self, t: float, worker_id: str) -> list[Answer]:
        """The reason for a handoff is gone; does what can still be done."""
        handoff = self._open.get(worker_id)
        if handoff is None:
            return []
        if handoff.stage is Stage.QUIESCE:
            return self._roll_back(t, handoff)
        if handoff.stage in (Stage.RELEASE, Stage.ACQUIRE) and self._may_keep_slots(handoff):
            handoff.target = replace(handoff.origin, accelerators=handoff.target.accelerators)
        else:
            handoff.returns = True
        return []

    def tick(self, t: float) -> list[Answer]:
        """Deadlines that have passed."""
        answers: list[Answer] = []
        for handoff in list(self._open.values()):
            if t >= handoff.deadline_t:
                answers += self._expire(t, handoff)
        return answers

    def worker_lost(self, t: float, worker_id: str) -> list[Answer]:
        """A worker is known to be dead: its accelerators are free for those that wait for them."""
        handoff = self._open.pop(worker_id, None)
        self._workers.pop(worker_id, None)
        self._departing.discard(worker_id)
        self.leases.release(worker_id)
        self.leases.unclaim(worker_id)
        answers: list[Answer] = []
        if handoff is not None:
            answers.append(self._ended(t, handoff, Outcome.LOST))
        return answers + self._acquire_what_is_free(t)

    def failed(self, t: float, worker_id: str, generation: int, stage: Stage) -> list[Answer]:
        """A stage was not carried out: like its deadline, only sooner."""
        handoff = self._open.get(worker_id)
        if handoff is None or handoff.generation != generation or handoff.stage is not stage:
            return []
        return self._expire(t, handoff)

    # -------------------------------------------------------------------------------- stages

    def _shift(self, t: float, handoff: _Handoff) -> Shift:
        return Shift(
            t=t,
            job=handoff.target.job,
            worker_id=handoff.worker_id,
            worker_generation=handoff.generation - 1,
            generation=handoff.generation,
            source=handoff.origin,
            target=handoff.target,
        )

    def _order(self, t: float, handoff: _Handoff, stage: Stage) -> HandoffOrder:
        handoff.stage = stage
        handoff.deadline_t = t + self.deadlines_s[stage]
        handoff.is_ordered = True
        return HandoffOrder(
            t=t,
            job=handoff.target.job,
            worker_id=handoff.worker_id,
            generation=handoff.generation,
            stage=stage,
            duty=handoff.target,
            version=self._version_of(handoff.target),
            deadline_t=handoff.deadline_t,
        )

    def _released(self, t: float, handoff: _Handoff) -> list[Answer]:
        answers: list[Answer] = []
        if handoff.target.accelerators:
            handoff.stage = Stage.ACQUIRE
            handoff.deadline_t = t + self.deadlines_s[Stage.ACQUIRE]
            handoff.is_ordered = False
        else:
            answers += self._serve(t, handoff, Outcome.COMPLETED)
        return answers + self._acquire_what_is_free(t)

    def _acquire_what_is_free(self, t: float) -> list[Answer]:
        """Release before acquire: whoever waits and finds all it wants free takes it now."""
        answers: list[Answer] = []
        for handoff in self._open.values():
            is_waiting = handoff.stage is Stage.ACQUIRE and not handoff.is_ordered
            if is_waiting and self._take(handoff):
                deadline_t = handoff.deadline_t
                order = self._order(t, handoff, Stage.ACQUIRE)
                handoff.deadline_t = deadline_t
                answers.append(replace(order, deadline_t=deadline_t))
        return answers

    def _take(self, handoff: _Handoff) -> bool:
        wanted = handoff.target.accelerators
        if not self.leases.can_take(handoff.worker_id, wanted):
            return False
        self.leases.take(handoff.worker_id, wanted)
        return True

    def _may_keep_slots(self, handoff: _Handoff) -> bool:
        return len(handoff.target.accelerators) == len(handoff.origin.accelerators)

    def _serve(self, t: float, handoff: _Handoff, outcome: Outcome) -> list[Answer]:
        del self._open[handoff.worker_id]
        self.leases.unclaim(handoff.worker_id)
        self._workers[handoff.worker_id].duty = handoff.target
        if handoff.returns:
            self._returning[handoff.worker_id] = handoff.origin
        return [self._ended(t, handoff, outcome)]

    def _roll_back(self, t: float, handoff: _Handoff) -> list[Answer]:
        handoff.target = handoff.origin
        self.leases.unclaim(handoff.worker_id)
        del self._open[handoff.worker_id]
        self._workers[handoff.worker_id].generation += 1
        handoff.generation += 1
        return [self._ended(t, handoff, Outcome.ROLLED_BACK)]

    def _expire(self, t: float, handoff: _Handoff) -> list[Answer]:
        match handoff.stage:
            case Stage.QUIESCE:
                return self._roll_back(t, handoff)
            case Stage.RESTART:
                del self._open[handoff.worker_id]
                self._departing.add(handoff.worker_id)
                self.leases.unclaim(handoff.worker_id)
                return [self._ended(t, handoff, Outcome.UNKNOWN)]
            case Stage.ACQUIRE if not handoff.is_ordered:
                return self._give_up_waiting(t, handoff)
            case _:
                return self._restart(t, handoff)

    def _restart(self, t: float, handoff: _Handoff) -> list[Answer]:
        """Start the process anew with what it owns: nobody else may own it before."""
        self._workers[handoff.worker_id].generation += 1
        handoff.generation += 1
        self.leases.unclaim(handoff.worker_id)
        owned = self.leases.held_by(handoff.worker_id)
        handoff.target = replace(handoff.target, accelerators=owned)
        return [self._order(t, handoff, Stage.RESTART)]

    def _give_up_waiting(self, t: float, handoff: _Handoff) -> list[Answer]:
        """What it wanted never became free: back to what it had, or, if that is gone, retire."""
        self.leases.unclaim(handoff.worker_id)
        handoff.target = handoff.origin
        if self._take(handoff):
            return self._restart(t, handoff)
        handoff.target = replace(handoff.origin, accelerators=frozenset())
        return self._serve(t, handoff, Outcome.RETIRED)

    def _ended(self, t: float, handoff: _Handoff, outcome: Outcome) -> HandoffEnded:
        return HandoffEnded(
            t=t,
            job=handoff.target.job,
            worker_id=handoff.worker_id,
            generation=handoff.generation,
            outcome=outcome,
            duty=handoff.target,
        )
