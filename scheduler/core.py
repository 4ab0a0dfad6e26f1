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
  with reason `shift` is the same to a runner as one after a loss. Deadlines of handoffs are acted on
  with `Tick`, so a driver whose workers shift must send it.
- `Cut` gives an attempt up, under admission policies that over-sample; it is answered by `Failed`.
- Late events (older generation, ended trajectory, left worker) change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import assert_never

from scheduler.decisions import Admit, Cut, Decision, Place, Prewarm, Requeue, RequeueReason
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
from scheduler.fleet import Fleet, Key
from scheduler.handoff import HandoffBook
from scheduler.jobs import Jobs, RunEvent
from scheduler.policies import AdmissionPolicy, Observer, PrewarmPolicy, RoutePolicy, ShiftPolicy
from scheduler.routing.exploration import Exploration
from scheduler.routing.least_load import LeastLoad
from scheduler.shifting.static import Static
from scheduler.shifts import Shifts
from scheduler.steps import Steps
from scheduler.trajectories import Group, Trajectory, demands_of
from scheduler.views import Phase, TrajectoryView
from scheduler.waiting import WaitingLanes

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
    ) -> None:
        """`observers` are told of rollout alone, `genrm_observers` of judgements; only rollout is
        explored with. `training_sizes`: numbers of workers that can train together; empty: any.
        Without `shifting` workers keep their roles."""
        self._routing = {Role.ROLLOUT: routing, Role.GENRM: genrm_routing or LeastLoad()}
        self._observers = {Role.ROLLOUT: tuple(observers), Role.GENRM: tuple(genrm_observers)}
        self._exploration = exploration
        self._prewarming = prewarming
        self._jobs = Jobs(admission)
        self._fleet = Fleet()
        self._trajectories: dict[Key, Trajectory] = {}
        self._groups: dict[tuple[str, Role, str], Group] = {}
        """By job, role and group id, while an attempt is open."""
        self._steps = Steps(training_sizes)
        self._shifts = Shifts(
            policy=shifting or Static(),
            fleet=self._fleet,
            turns=self,
            steps=self._steps,
            book=handoffs or HandoffBook(),
        )
        self._waiting = WaitingLanes()
        self._tried = (0, 0)
        """Changes of the fleet and of the lanes after which placement was tried last; an end of an
        attempt may make room that only the router knows of, so it is tried again then too."""
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
        decisions += self._place_waiting(event.t)
        return tuple(decisions)

    @property
    def num_open_trajectories(self) -> int:
        return len(self._trajectories)

    @property
    def num_held_slots(self) -> int:
        return self._fleet.num_held_slots

    def trajectory(self, job: str, trajectory_id: str) -> TrajectoryView | None:
        """What is known of an open trajectory."""
        known = self._trajectories.get((job, trajectory_id))
        return known.view() if known is not None else None

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
            case Submitted():
                self._submit(event)
            case ToolStarted():
                return self._prewarm(event)
            case (
                TurnReady()
                | PlaceRejected()
                | Progress()
                | TurnFinished()
                | ToolReturned()
                | Finished()
                | Failed()
            ):
                self._update_trajectory(event)
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
            return self._cut(event.t, event.job)
        num_groups = self._jobs.admit(event.job)
        return [Admit(t=event.t, job=event.job, num_groups=num_groups)] if num_groups else []

    def _cut(self, t: float, name: str) -> list[Decision]:
        return [
            Cut(t=t, job=name, trajectory_id=trajectory_id, generation=trajectory.generation)
            for (job, trajectory_id), trajectory in self._trajectories.items()
            if job == name
            and not trajectory.submitted.is_eval
            and trajectory.submitted.role is Role.ROLLOUT
        ]

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

    def view_of(self, key: Key) -> TrajectoryView:
        return self._trajectories[key].view()

    def requeue(self, t: float, key: Key, reason: RequeueReason) -> Requeue:
        """A turn has lost its slot; its runner is to ask again."""
        trajectory = self._trajectories[key]
        trajectory.lost_worker()
        job, trajectory_id = key
        return Requeue(
            t=t,
            job=job,
            trajectory_id=trajectory_id,
            generation=trajectory.generation,
            turn=trajectory.turn,
            reason=reason,
        )

    # ------------------------------------------------------------------------- roles and steps

    def _is_stranded(self, event: Event) -> bool:
        """A turn became ready that nobody serves or is on the way to serve, the first one since
        the fleet changed: the answer to the next would be the same."""
        if not isinstance(event, TurnReady):
            return False
        trajectory = self._trajectories.get((event.job, event.trajectory_id))
        if trajectory is None or event.generation < trajectory.generation:
            return False
        role = trajectory.submitted.role
        if self._fleet.serving(role, event.job) or self._shifts.is_coming(event.job, role):
            return False
        asked = (event.job, role, self._fleet.num_member_changes)
        is_first, self._stranded = asked != self._stranded, asked
        return is_first

    def _plan(self, t: float) -> list[Decision]:
        trainings = self._steps.views(self._jobs.counters())
        demands = demands_of(self._trajectories.values())
        return self._shifts.plan(self._shifts.view(t, demands, trainings))

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

    # --------------------------------------------------------------------------- trajectories

    def _submit(self, event: Submitted) -> None:
        key = (event.job, event.trajectory_id)
        known = self._trajectories.get(key)
        if known is not None:
            if event.generation <= known.generation:
                return
            self._end(known, is_complete=False)
        group = self._groups.setdefault((event.job, event.role, event.group_id), Group())
        trajectory = self._trajectories[key] = Trajectory.from_submitted(event, group)
        group.open[event.trajectory_id] = trajectory

    def _update_trajectory(
        self,
        event: TurnReady
        | PlaceRejected
        | Progress
        | TurnFinished
        | ToolReturned
        | Finished
        | Failed,
    ) -> None:
        trajectory = self._trajectories.get((event.job, event.trajectory_id))
        if trajectory is None or event.generation < trajectory.generation:
            return
        match event:
            case TurnReady():
                self._turn_ready(trajectory, event)
            case PlaceRejected():
                self._place_rejected(trajectory, event)
            case Progress():
                trajectory.progressed(event)
            case TurnFinished():
                assert trajectory.phase in (Phase.DECODING, Phase.LOST), "no turn was running"
                self._fleet.free(trajectory.key)
                trajectory.turn_finished(event)
                for observer in self._observers_of(trajectory):
                    observer.turn_finished(trajectory.view())
            case ToolReturned():
                trajectory.tool_returned(event)
            case Finished():
                self._end(trajectory, is_complete=True)
                self._tell_siblings(trajectory, event.tokens)
            case Failed():
                self._end(trajectory, is_complete=False)

    def _prewarm(self, event: ToolStarted) -> list[Decision]:
        trajectory = self._trajectories.get((event.job, event.trajectory_id))
        is_late = trajectory is None or event.generation < trajectory.generation
        if self._prewarming is None or trajectory is None or is_late:
            return []
        view = trajectory.view()
        worker = self._prewarming.prewarm(view, self._fleet.serving(view.role, view.job))
        if worker is None:
            return []
        return [
            Prewarm(
                t=event.t,
                job=event.job,
                trajectory_id=event.trajectory_id,
                generation=trajectory.generation,
                worker_id=worker.worker_id,
                worker_generation=worker.generation,
            )
        ]

    def _turn_ready(self, trajectory: Trajectory, event: TurnReady) -> None:
        is_new = event.generation > trajectory.generation
        assert is_new or trajectory.phase is Phase.RESTING, (
            f"{event.trajectory_id} asks for turn {event.turn} while {trajectory.phase}, "
            f"again with generation {event.generation}"
        )
        self._fleet.free(trajectory.key)
        trajectory.turn_ready(event)
        for observer in self._observers_of(trajectory):
            observer.turn_ready(trajectory.view())
        self._enqueue(trajectory)

    def _place_rejected(self, trajectory: Trajectory, event: PlaceRejected) -> None:
        self._fleet.suspect(event.worker_id, event.worker_generation)
        if trajectory.phase in (Phase.DECODING, Phase.LOST) and trajectory.turn == event.turn:
            self._fleet.free(trajectory.key)
            trajectory.waits_again()
            self._enqueue(trajectory)

    def _enqueue(self, trajectory: Trajectory) -> None:
        view = trajectory.view()
        routing = self._routing[view.role]
        lane = routing.lane(view, self._fleet.serving(view.role, view.job))
        if view.role is not Role.ROLLOUT:
            lane = f"{view.role} {lane}"
        self._waiting.push(trajectory, lane, routing.order(view))

    def _observers_of(self, trajectory: Trajectory) -> tuple[Observer, ...]:
        return self._observers[trajectory.submitted.role]

    def _end(self, trajectory: Trajectory, *, is_complete: bool) -> None:
        self._fleet.free(trajectory.key)
        self._waiting.withdraw(trajectory)
        del self._trajectories[trajectory.key]
        self._tried = (-1, -1)
        group = trajectory.group
        del group.open[trajectory.submitted.trajectory_id]
        if not group.open:
            submitted = trajectory.submitted
            del self._groups[submitted.job, submitted.role, submitted.group_id]
        for observer in self._observers_of(trajectory):
            observer.ended(trajectory.view(), is_complete=is_complete)

    def _tell_siblings(self, ended: Trajectory, tokens: int) -> None:
        """A finished attempt says something of its group: those that wait get their place anew."""
        ended.group.finished(tokens)
        for sibling in ended.group.open.values():
            if sibling.phase is Phase.WAITING:
                self._enqueue(sibling)

    # ------------------------------------------------------------------------------ placement

    def _place_waiting(self, t: float) -> list[Decision]:
        decisions: list[Decision] = []
        if self._tried == (self._fleet.num_changes, self._waiting.num_pushed):
            return decisions
        for lane in self._waiting.lanes():
            while (trajectory := self._waiting.head(lane)) is not None:
                place = self._place(t, trajectory)
                if place is None:
                    break
                self._waiting.pop(lane)
                decisions.append(place)
        self._tried = (self._fleet.num_changes, self._waiting.num_pushed)
        return decisions

    def _place(self, t: float, trajectory: Trajectory) -> Place | None:
        job, trajectory_id = trajectory.key
        role = trajectory.submitted.role
        workers = self._fleet.serving(role, job)
        worker = self._routing[role].choose(trajectory.view(), workers)
        if worker is None:
            return None
        propensity = 1.0
        if self._exploration is not None and role is Role.ROLLOUT:
            worker, propensity = self._exploration.deviate(worker, workers)
        self._fleet.take(trajectory.key, worker, trajectory.context_tokens)
        trajectory.placed(worker)
        for observer in self._observers_of(trajectory):
            observer.placed(trajectory.view())
        return Place(
            t=t,
            job=job,
            trajectory_id=trajectory_id,
            generation=trajectory.generation,
            turn=trajectory.turn,
            worker_id=worker.worker_id,
            worker_generation=worker.generation,
            propensity=propensity,
        )
