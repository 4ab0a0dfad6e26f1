"""The scheduler: events in, decisions out, and the only state that decisions depend on.

`Scheduler.on(event)` first brings its books up to date and then answers with everything that the
event made possible: a `Place` comes with the event that freed the slot, not with the one that asked
for it. It reads no clock, draws no random number and touches nothing outside, so the same log
gives the same decisions, always, in the live runtime and in the simulator.

The contract with a driver
- Events arrive one at a time, `seq` rising and `t` never falling (scheduler.events says the rest).
- Work is asked for by events. `RunStarted`, `Published`, `GroupAccepted` and `GroupRejected` are
  answered with `Admit(num_groups)` when capacity allows; admitted groups count as running until
  they are accepted or rejected, and each must end with exactly one of the two.
- `TurnReady` is answered, then or later, by exactly one `Place`, unless the trajectory ends, asks
  again with a higher generation, or the worker is rejected (then by another `Place`).
- A slot is held from `Place` until `TurnFinished`, `PlaceRejected`, `Finished`, `Failed`, a newer
  generation of the trajectory, or the loss of the worker. Nothing else holds slots, so nothing
  leaks when a trajectory ends in whatever state.
- `WorkerLost`, or `WorkerReady` with a higher generation, answers `Requeue` for each turn that was
  running there; the runner keeps the tokens and sends `TurnReady` with a higher generation. Should
  the turn's end already be on its way, `TurnFinished` of the old generation still counts.
- A GenRM request is `Submitted(role=GENRM)`, then one `TurnReady`, `TurnFinished`, `Finished`.
- `BatchReady` is answered, then or later, by one `StartStep`, when its training workers are there.
- `Shift` and `HandoffOrder` are carried out and reported (scheduler.decisions says how); `Requeue`
  with reason `shift` is the same to a runner as one after a loss.
- Deadlines of handoffs are acted on with `Tick`, and workers that were rejected are tried again with
  it, so a driver whose workers shift or may be rejected must send it.
- `Cut` gives an attempt up, under admission policies that over-sample; it is answered by `Failed`.
- `Restored`, first of all on a resumed run, brings back what `save` gave; it is part of the log, so
  the log of a launch replays by itself.
- Late events (older generation, ended trajectory, left worker) change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, assert_never

from scheduler.calibration import Calibration
from scheduler.decisions import Admit, Decision
from scheduler.events import (
    BatchReady,
    Event,
    Failed,
    Finished,
    GroupAccepted,
    GroupRejected,
    HandoffFailed,
    HandoffStage,
    PlaceRejected,
    PreemptionNotice,
    Progress,
    Published,
    Restored,
    Role,
    RunStarted,
    StepEnded,
    StepStarted,
    Submitted,
    Tick,
    ToolReturned,
    ToolStarted,
    TurnFinished,
    TurnReady,
    WeightsLoaded,
    WorkerLost,
    WorkerReady,
)
from scheduler.fleet import Fleet
from scheduler.handoff import HandoffBook
from scheduler.jobs import Jobs, RunEvent
from scheduler.ledger import Ledger
from scheduler.placing import Placing
from scheduler.policies import (
    AdmissionPolicy,
    Learner,
    Observer,
    PrewarmPolicy,
    RoutePolicy,
    ShiftPolicy,
)
from scheduler.routing.exploration import Exploration
from scheduler.routing.least_load import LeastLoad
from scheduler.shifting.static import Static
from scheduler.shifts import Shifts
from scheduler.steps import Steps
from scheduler.views import Demand, WorkerView

_FleetEvent = WorkerReady | WorkerLost | WeightsLoaded | PreemptionNotice
_PLANNED_AFTER = (Tick, BatchReady, StepEnded, Published, WorkerReady, WorkerLost, PreemptionNotice)
_STEPS_AFTER = (*_PLANNED_AFTER, HandoffStage, HandoffFailed)


class Scheduler:
    """See the module docstring for the contract."""

    def __init__(
        self,
        *,
        routing: RoutePolicy,
        admission: AdmissionPolicy,
        observers: Sequence[Observer] = (),
        genrm_observers: Sequence[Observer] = (),
        exploration: Exploration | None = None,
        prewarming: PrewarmPolicy | None = None,
        genrm_routing: RoutePolicy | None = None,
        shifting: ShiftPolicy | None = None,
        handoffs: HandoffBook | None = None,
        training_sizes: Sequence[int] = (),
        learners: Mapping[str, Learner] | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        """`observers` are told of rollout alone, `genrm_observers` of judgements; only rollout is
        explored with. `training_sizes`: numbers of workers that can train together; empty: any.
        Without `shifting` workers keep their roles. `learners`: parts of the policies above whose
        knowledge outlives a launch, by names that say what it takes to understand it. `calibration`
        learns what work costs, for policies that look at it and for reports."""
        told = {Role.ROLLOUT: tuple(observers), Role.GENRM: tuple(genrm_observers)}
        self._jobs = Jobs(admission)
        self._fleet = Fleet()
        self._placing = Placing(
            fleet=self._fleet,
            routing={Role.ROLLOUT: routing, Role.GENRM: genrm_routing or LeastLoad()},
            observers=told,
            exploration=exploration,
            prewarming=prewarming,
        )
        self._ledger = Ledger(self._fleet, self._placing, told)
        self._steps = Steps(training_sizes)
        self._shifts = Shifts(
            policy=shifting or Static(),
            fleet=self._fleet,
            turns=self._ledger,
            steps=self._steps,
            book=handoffs or HandoffBook(),
        )
        self.calibration = calibration or Calibration()
        self._learners = {**(learners or {}), "costs": self.calibration}
        self._stranded: tuple[str, Role, int] | None = None
        """The side, and the state of the fleet, for which a turn without a worker asked last."""
        self._last_seq = -1
        self._last_t = -inf

    def on(self, event: Event) -> tuple[Decision, ...]:
        """Take in one event; the decisions it made possible, in the order to apply them."""
        assert event.seq > self._last_seq, f"seq {event.seq} after {self._last_seq}"
        assert event.t >= self._last_t, f"time {event.t} after {self._last_t}"
        self._last_seq, self._last_t = event.seq, event.t
        decisions = self._update(event)
        if isinstance(event, _PLANNED_AFTER) or self._is_stranded(event):
            decisions += self._plan(event.t)
        if isinstance(event, _STEPS_AFTER):
            decisions += self._start_steps(event.t)
        decisions += self._placing.place_waiting(event.t)
        self.calibration.on(event, decisions)
        return tuple(decisions)

    def save(self) -> dict[str, Any]:
        """What has been learned, as plain data for a checkpoint; `Restored` gives it back. What is
        open now is not in it: attempts, handoffs and counters begin anew with the next launch."""
        return {name: learner.state() for name, learner in self._learners.items()}

    @property
    def planning(self) -> tuple[int, int]:
        """How often the shift policy was asked, and how many candidate plans it has weighed."""
        return self._shifts.num_plans, self._shifts.num_weighed

    def demands(self) -> dict[tuple[str, Role], Demand]:
        """Open attempts by job and role, for people who look on."""
        return self._ledger.demands()

    def members(self) -> list[WorkerView]:
        """Workers in service, whatever they serve, for people who look on."""
        return [worker for worker, _ in self._fleet.members()]

    # ------------------------------------------------------------------------------ the books

    def _update(self, event: Event) -> list[Decision]:
        match event:
            case RunStarted() | Published() | GroupAccepted() | GroupRejected():
                return self._update_run(event)
            case BatchReady() | StepStarted() | StepEnded():
                self._steps.update(event)
            case WorkerReady() | WorkerLost() | WeightsLoaded() | PreemptionNotice():
                return self._update_fleet(event)
            case HandoffStage():
                return self._shifts.stage_done(event)
            case HandoffFailed():
                return self._shifts.stage_failed(event)
            case Tick():
                return self._shifts.tick(event.t)
            case Restored():
                self._restore(event.learned)
            case Submitted():
                self._ledger.submit(event)
            case ToolStarted():
                return self._ledger.tool_started(event)
            case (
                TurnReady()
                | PlaceRejected()
                | Progress()
                | TurnFinished()
                | ToolReturned()
                | Finished()
                | Failed()
            ):
                self._ledger.update(event)
            case _:
                assert_never(event)
        return []

    def _update_run(self, event: RunEvent) -> list[Decision]:
        self._jobs.update(event)
        match event:
            case RunStarted():
                self._steps.update(event)
                self._shifts.published(event.job, event.version)
            case Published():
                self._shifts.published(event.job, event.version)
            case _:
                pass
        if self._jobs.wants_cut(event.job):
            return self._ledger.cut(event.t, event.job)
        num_groups = self._jobs.admit(event.job)
        return [Admit(t=event.t, job=event.job, num_groups=num_groups)] if num_groups else []

    def _update_fleet(self, event: _FleetEvent) -> list[Decision]:
        match event:
            case WorkerReady():
                return self._shifts.ready(event)
            case WorkerLost():
                return self._shifts.lost(event)
            case PreemptionNotice():
                return self._shifts.notice(event)
            case WeightsLoaded():
                self._fleet.weights_loaded(event.worker_id, event.generation, event.version)
                return []

    def _restore(self, learned: Mapping[str, Any]) -> None:
        """What belongs to policies that this scheduler does not have is left out."""
        for name, learner in self._learners.items():
            if name in learned:
                learner.restore(learned[name])

    # ------------------------------------------------------------------------- roles and steps

    def _is_stranded(self, event: Event) -> bool:
        """A turn became ready that nobody serves or is on the way to serve, the first one since
        the fleet changed: the answer to the next would be the same."""
        if not isinstance(event, TurnReady):
            return False
        trajectory = self._ledger.current(event)
        if trajectory is None:
            return False
        role = trajectory.submitted.role
        if self._fleet.serving(role, event.job) or self._shifts.is_coming(event.job, role):
            return False
        asked = (event.job, role, self._fleet.num_member_changes)
        is_first, self._stranded = asked != self._stranded, asked
        return is_first

    def _plan(self, t: float) -> list[Decision]:
        trainings = self._steps.views(self._jobs.counters())
        return self._shifts.plan(self._shifts.view(t, self._ledger.demands(), trainings))

    def _start_steps(self, t: float) -> list[Decision]:
        decisions: list[Decision] = []
        for job in self._steps.waiting():
            if self._shifts.is_coming(job, Role.TRAINING):
                continue
            workers = [worker.worker_id for worker in self._fleet.serving(Role.TRAINING, job)]
            start = self._steps.start(t, job, workers)
            if start is not None:
                decisions.append(start)
        return decisions
