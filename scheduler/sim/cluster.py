"""A cluster in simulated time: runs agents on workers and does what the scheduler decides.

The cluster is a driver like the live runtime: it stamps events, feeds them to a `Scheduler` one at
a time and hands each decision to the part that carries it out, which checks generations as a
driver must. All that is random was drawn before or comes from generators it was given, and events
of one instant keep the order in which they were scheduled, so a run is a function of its arguments.

Everything of one instant is applied before a worker begins its next action, so turns that arrive
together are batched together.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
from numpy.random import Generator

from scheduler.core import Scheduler
from scheduler.costs import Shape
from scheduler.decisions import (
    Admit,
    CancelShift,
    Cut,
    Decision,
    Evict,
    HandoffEnded,
    HandoffOrder,
    Place,
    Prewarm,
    Requeue,
    RequeueReason,
    Shift,
    StartStep,
)
from scheduler.events import Event, Failed, FailureKind, RunStarted, Tick, TrajectoryEvent
from scheduler.sim.agenda import Agenda
from scheduler.sim.attempts import JOB, Attempts
from scheduler.sim.faults import Faults
from scheduler.sim.handoffs import Handoffs
from scheduler.sim.hosts import SimulatedHosts
from scheduler.sim.requests import DecodeWorker
from scheduler.sim.specs import (
    ClusterResult,
    Elasticity,
    PlannerCost,
    StageTimes,
    StepSpec,
    WorkerSpec,
)
from scheduler.sim.trainer import Trainer
from scheduler.sim.worker import SkippingWorker
from scheduler.sim.workload import AttemptPlan, Workload

Listener = Callable[[Event, tuple[Decision, ...]], None]


class Cluster:
    def __init__(
        self,
        *,
        workers: list[WorkerSpec],
        steps: StepSpec,
        workload: Workload,
        scheduler: Scheduler,
        faults: Faults,
        make_worker: Callable[[Shape], DecodeWorker] = SkippingWorker,
        listen: Listener | None = None,
        elasticity: Elasticity | None = None,
        judge: Callable[[AttemptPlan], AttemptPlan] | None = None,
        rng: Generator | None = None,
    ) -> None:
        """`judge` makes the GenRM request of an attempt; `rng` draws the times of handoffs."""
        self.result = ClusterResult()
        self._specs = workers
        self._steps = steps
        self._scheduler = scheduler
        self._faults = faults
        self._listen = listen
        self._seq = 0
        self._tick_s = elasticity.tick_s if elasticity is not None else None
        self._planner = elasticity.planner if elasticity is not None else PlannerCost()
        times = elasticity.times if elasticity is not None else StageTimes()
        self._planned_t = 0.0
        """When the plan that the shift policy is making will be there."""
        self._agenda = Agenda()
        self._trainer = Trainer(
            agenda=self._agenda,
            send=self._send,
            steps=steps,
            result=self.result,
            published=lambda version: self._hosts.published(version, steps.pull_seconds),
            is_up=lambda name: self._hosts[name].is_up,
        )
        self._attempts = Attempts(
            agenda=self._agenda,
            send=self._send,
            workload=workload,
            faults=faults,
            result=self.result,
            judge=judge,
            requeue_s=times.requeue_s,
            group_ready=self._trainer.group_ready,
        )
        self._hosts = SimulatedHosts(
            agenda=self._agenda,
            send=self._send,
            faults=faults,
            make_worker=make_worker,
            elasticity=elasticity,
            turn_ended=self._attempts.turn_ended,
        )
        self._attempts.hosts = self._hosts
        self._hosts.died = self._trainer.died
        self._hosts.lost = self._trainer.lost
        self._handoffs = Handoffs(
            agenda=self._agenda,
            send=self._send,
            hosts=self._hosts,
            faults=faults,
            times=times,
            rng=rng or np.random.default_rng(0),
            result=self.result,
        )

    def run(self, limit_s: float = inf) -> ClusterResult:
        """Until all steps are done; that they are not by `limit_s` is a deadlock."""
        for spec in self._specs:
            self._hosts.start(spec)
        self._send(RunStarted)
        if self._tick_s is not None:
            self._agenda.after(self._tick_s, self._tick, self._tick_s)
        while self._trainer.version < self._steps.num_steps:
            is_stuck = not self._agenda or self._agenda.t > limit_s
            assert not is_stuck, f"stuck at {self._agenda.t}: {len(self._attempts)} attempts open"
            self._agenda.instant()
            self._hosts.plan()
        self.result.seconds = self._agenda.t
        self.result.workers = self._hosts.stats()
        self.result.costs = self._scheduler.calibration.reports()
        return self.result

    def _tick(self, every_s: float) -> None:
        self._send(Tick)
        self._agenda.after(every_s, self._tick, every_s)

    def _send(self, kind: type[Event], /, **fields: Any) -> None:
        self._seq += 1
        event = kind(t=self._agenda.t, seq=self._seq, job=JOB, **fields)
        plans, candidates = self._scheduler.planning
        decisions = self._scheduler.on(event)
        if self._listen is not None:
            self._listen(event, decisions)
        self.result.num_events += 1
        self.result.num_decisions += len(decisions)
        self._planned_t = max(self._planned_t, self._agenda.t + self._planning_s(plans, candidates))
        for decision in decisions:
            if self._planned_t > self._agenda.t and _waits_for_plans(decision):
                self._agenda.at(self._planned_t, self._apply, decision)
            else:
                self._apply(decision)
        if isinstance(event, TrajectoryEvent) and self._faults.message_is_late():
            self._send_stale(event)

    def _planning_s(self, plans: int, candidates: int) -> float:
        """What planning has taken since so many plans and candidates."""
        asked, weighed = self._scheduler.planning
        if asked == plans:
            return 0.0
        return self._planner.seconds(asked - plans, weighed - candidates, len(self._attempts))

    def _send_stale(self, event: TrajectoryEvent) -> None:
        """An old attempt's end arrives after a newer generation has begun."""
        if event.generation > 0:
            self._send(
                Failed,
                trajectory_id=event.trajectory_id,
                generation=event.generation - 1,
                kind=FailureKind.INFRA,
            )

    def _apply(self, decision: Decision) -> None:
        match decision:
            case Place():
                delay = self._faults.dispatch_s()
                if delay == 0:
                    self._attempts.place(decision)
                else:
                    self._agenda.after(delay, self._attempts.place, decision)
            case Prewarm():
                self._attempts.prewarm(decision)
            case Admit():
                self._attempts.admit(decision.num_groups)
            case Cut():
                self._attempts.cut(decision)
            case Requeue():
                self._attempts.requeue(decision)
            case StartStep():
                self._trainer.start(decision)
            case Shift():
                self._handoffs.shift(decision)
            case HandoffOrder():
                self._handoffs.order(decision)
            case HandoffEnded():
                self._handoffs.ended(decision)
            case CancelShift() | Evict():
                pass


def _waits_for_plans(decision: Decision) -> bool:
    """It may be of a plan, or follow one: these keep their order, and nothing else waits for plans."""
    match decision:
        case Shift() | HandoffOrder() | CancelShift() | HandoffEnded():
            return True
        case Requeue():
            return decision.reason is RequeueReason.SHIFT
        case _:
            return False
