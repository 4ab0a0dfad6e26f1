"""Workers changing what they serve: plans of the policy, carried through the handoff book.

Everything that concerns a worker's coming and going passes here, so that the routing set, the
handoff book and the leases change in one step: a worker that begins a handoff is out of the routing
set in the same answer, and only a ready report of the newest generation brings it back in.

What decodes on a worker that leaves is requeued at once with the tokens it has, or, where the
policy finds that cheaper, ends there during QUIESCE. What is inside a tool call is not touched: it
only has no home any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from scheduler.decisions import (
    CancelShift,
    Decision,
    Duty,
    Evict,
    HandoffOrder,
    Requeue,
    RequeueReason,
    Shift,
)
from scheduler.events import (
    HandoffFailed,
    HandoffStage,
    PreemptionNotice,
    Role,
    Stage,
    WorkerLost,
    WorkerReady,
)
from scheduler.fleet import Fleet, Key
from scheduler.handoff import Answer, HandoffBook, OpenShift
from scheduler.policies import ShiftPolicy
from scheduler.steps import Steps
from scheduler.views import Demand, Member, ShiftView, TrainingView, TrajectoryView


class Turns(Protocol):
    """The turns that run, as the scheduler keeps them."""

    def view_of(self, key: Key) -> TrajectoryView: ...

    def requeue(self, t: float, key: Key, reason: RequeueReason) -> Requeue:
        """A turn has lost its slot."""
        ...


class Shifts:
    """See the module docstring."""

    def __init__(
        self, *, policy: ShiftPolicy, fleet: Fleet, turns: Turns, steps: Steps, book: HandoffBook
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._turns = turns
        self._steps = steps
        self._book = book
        self.num_plans = 0
        """Times that the policy was asked."""

    @property
    def num_weighed(self) -> int:
        """Candidate plans that the policy has set against each other."""
        return self._policy.num_weighed

    # ------------------------------------------------------------------------ workers come and go

    def ready(self, event: WorkerReady) -> list[Decision]:
        """Check the generation and enter the routing set, in one step."""
        name = event.worker_id
        known = self._book.generation(name)
        stage = self._book.stage(name)
        if known is not None and event.generation < known:
            return []
        answers: list[Answer] = []
        if stage is None:
            if self._fleet.generation(name) == event.generation:
                return []
            self._book.join(name, event.generation, duty_of(event))
        elif event.generation == known and stage in (Stage.WARM, Stage.RESTART):
            answers = self._book.done(event.t, name, event.generation, stage)
        else:
            answers = self._book.worker_lost(event.t, name)
            self._book.join(name, event.generation, duty_of(event))
        decisions = self._requeued(event.t, self._fleet.ready(event), RequeueReason.WORKER_LOST)
        if self._book.is_departing(name):
            self._fleet.close(name)
        return decisions + self._follow(event.t, answers)

    def lost(self, event: WorkerLost) -> list[Decision]:
        name = event.worker_id
        serving = self._fleet.generation(name)
        known = serving if serving is not None else self._book.generation(name)
        if known is None or event.generation < known:
            return []
        orphans = self._fleet.release(name)
        decisions = self._requeued(event.t, orphans, RequeueReason.WORKER_LOST)
        return decisions + self._follow(event.t, self._book.worker_lost(event.t, name))

    def notice(self, event: PreemptionNotice) -> list[Decision]:
        """The machine will be taken away: nothing new goes there, and what runs gets away."""
        name = event.worker_id
        known = self._book.generation(name)
        if known is None or event.generation < known or self._book.is_departing(name):
            return []
        self._book.evict(name)
        evict = Evict(
            t=event.t,
            job=event.job,
            worker_id=name,
            generation=event.generation,
            deadline_t=event.t + event.deadline_s,
        )
        return [evict, *self._close(event.t, name)]

    # -------------------------------------------------------------------------------- handoffs

    def stage_done(self, event: HandoffStage) -> list[Decision]:
        answers = self._book.done(
            event.t, event.worker_id, event.generation, event.stage, event.version
        )
        return self._follow(event.t, answers)

    def stage_failed(self, event: HandoffFailed) -> list[Decision]:
        answers = self._book.failed(event.t, event.worker_id, event.generation, event.stage)
        return self._follow(event.t, answers)

    def tick(self, t: float) -> list[Decision]:
        self._fleet.tick(t)
        return self._follow(t, self._book.tick(t))

    def published(self, job: str, version: int) -> None:
        self._book.published(job, version)

    def is_coming(self, job: str, role: Role) -> bool:
        """Whether a worker is on its way to this role."""
        return any(_is_for(shift, job, role) for shift in self._book.open_shifts())

    def _follow(self, t: float, answers: Iterable[Answer]) -> list[Decision]:
        decisions: list[Decision] = []
        for answer in answers:
            decisions.append(answer)
            match answer:
                case Shift():
                    decisions += self._close(t, answer.worker_id)
                case HandoffOrder(stage=Stage.RELEASE | Stage.RESTART):
                    left = self._fleet.release(answer.worker_id)
                    decisions += self._requeued(t, left, RequeueReason.SHIFT)
                case _:
                    pass
        return decisions

    def _close(self, t: float, worker_id: str) -> list[Decision]:
        self._fleet.close(worker_id)
        leaving = []
        for key in self._fleet.running(worker_id):
            view = self._turns.view_of(key)
            if not self._policy.lets_finish(view, self._fleet.view(worker_id)):
                leaving.append(key)
        for key in leaving:
            self._fleet.free(key)
        return self._requeued(t, leaving, RequeueReason.SHIFT)

    def _requeued(self, t: float, keys: Iterable[Key], reason: RequeueReason) -> list[Decision]:
        return [self._turns.requeue(t, key, reason) for key in keys]

    # -------------------------------------------------------------------------------- planning

    def view(
        self,
        t: float,
        demands: Mapping[tuple[str, Role], Demand],
        trainings: Mapping[str, TrainingView],
    ) -> ShiftView:
        return ShiftView(
            t=t,
            members=tuple(
                Member(worker=worker, duty=self._book.duty(worker.worker_id), since_t=since_t)
                for worker, since_t in self._fleet.members()
                if self._book.is_serving(worker.worker_id)
            ),
            spares=self._book.spares(),
            open_shifts=self._book.open_shifts(),
            demands=demands,
            trainings=trainings,
        )

    def plan(self, view: ShiftView) -> list[Decision]:
        decisions: list[Decision] = []
        for worker_id, duty in self._book.take_returning().items():
            decisions += self._begin(view, {worker_id: duty})
        self.num_plans += 1
        plan = self._policy.plan(view)
        if plan is None:
            return decisions
        for worker_id in plan.cancels:
            decisions += self._cancel(view, worker_id)
        return decisions + self._begin(view, plan.moves)

    def _begin(self, view: ShiftView, moves: Mapping[str, Duty]) -> list[Decision]:
        if not moves or not self._may_begin(view, moves):
            return []
        return self._follow(view.t, self._book.begin(view.t, moves))

    def _cancel(self, view: ShiftView, worker_id: str) -> list[Decision]:
        generation = self._book.generation(worker_id)
        if generation is None or self._book.stage(worker_id) is None:
            return []
        duty = self._book.duty(worker_id)
        if not self._may_leave(view, {worker_id: duty}, duty.job, duty.role, is_cancel=True):
            return []
        cancel = CancelShift(t=view.t, job=duty.job, worker_id=worker_id, generation=generation)
        return [cancel, *self._follow(view.t, self._book.cancel(view.t, worker_id))]

    def _may_begin(self, view: ShiftView, moves: Mapping[str, Duty]) -> bool:
        if self._book.refusal(moves) is not None:
            return False
        sources = {
            (member.duty.job, member.duty.role)
            for member in view.members
            if member.worker.worker_id in moves
        }
        return all(self._may_leave(view, moves, job, role) for job, role in sources)

    def _may_leave(
        self,
        view: ShiftView,
        moves: Mapping[str, Duty],
        job: str,
        role: Role,
        *,
        is_cancel: bool = False,
    ) -> bool:
        """Whether this role can do without the workers that are taken from it, or called off."""
        if role is Role.TRAINING:
            if self._steps.is_running(job) and not is_cancel:
                return False
            is_needed, minimum = self._steps.is_needed(job), self._steps.smallest
        else:
            is_needed, minimum = view.demand(job, role).total > 0, 1
        staying = [m.worker.worker_id for m in view.serving(job, role)]
        coming = [
            shift.worker_id for shift in self._book.open_shifts() if _is_for(shift, job, role)
        ]
        arriving = [
            name
            for name, duty in moves.items()
            if (duty.job, duty.role) == (job, role) and duty.accelerators and not is_cancel
        ]
        left = {name for name in staying if self._book.is_serving(name)} | set(coming)
        return not is_needed or len(left - set(moves)) + len(arriving) >= minimum


def _is_for(shift: OpenShift, job: str, role: Role) -> bool:
    return (shift.target.job, shift.target.role) == (job, role)


def duty_of(event: WorkerReady) -> Duty:
    """What a worker says that it serves."""
    return Duty(
        role=event.role,
        bucket=event.bucket,
        accelerators=frozenset(event.accelerators or (event.worker_id,)),
        job=event.job,
    )
