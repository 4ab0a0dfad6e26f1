"""What must hold in every log of events and decisions, live or simulated, whatever went wrong.

The checker reads a log from outside, shares no code with the scheduler's books, and raises
`InvariantBroken` at the first line that breaks a rule:

- an attempt begins once, ends once, and nothing of an ended one is answered;
- a trajectory holds at most one slot; a worker never runs more turns than it has slots;
- a turn is placed only on a worker that serves its role and job, under its current generation, and
  on none that is leaving or was just rejected; what is requeued had lost its worker, or its worker leaves;
- a context never shrinks within an attempt: tokens survive the loss of a worker;
- a tool call runs once and its result is taken once;
- events of an old generation change nothing: they are answered by nothing;
- no more groups are admitted, nor accepted, than the staleness bound allows;
- a lost attempt is never counted as finished;
- of workers and handoffs: see scheduler.handoff_rules.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

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
from scheduler.events import (
    REJECTED_S,
    Event,
    Failed,
    Finished,
    GroupAccepted,
    GroupRejected,
    PlaceRejected,
    Published,
    Role,
    RunStarted,
    Submitted,
    ToolReturned,
    ToolStarted,
    TrajectoryEvent,
    TurnFinished,
    TurnReady,
    WorkerEvent,
    WorkerLost,
    WorkerReady,
)
from scheduler.handoff_rules import HandoffRules, InvariantBroken, require


@dataclass(slots=True)
class _Open:
    submitted: int
    """Generation of the submission: names the attempt."""
    role: Role
    generation: int
    context_tokens: int = 0
    worker_id: str | None = None
    calls: set[tuple[int, str]] = field(default_factory=set)
    results: set[tuple[int, str]] = field(default_factory=set)


@dataclass(slots=True)
class _Serving:
    ready: WorkerReady
    running: set[str] = field(default_factory=set)
    is_closed: bool = False
    """It is leaving."""
    shunned_until_t: float = 0.0
    """It was rejected."""


class InvariantChecker:
    """Feed it every event with its decisions, then ask whether all is over."""

    def __init__(self, *, groups_per_step: int, max_staleness: int) -> None:
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._open: dict[str, _Open] = {}
        self._ended: dict[str, int] = {}
        """Highest generation that has ended, by trajectory."""
        self._workers: dict[str, _Serving] = {}
        self._version = 0
        self._open_groups = 0
        """Accepted and running."""
        self._num_accepted = 0
        self.num_finished = 0
        self.handoffs = HandoffRules()

    def check(self, event: Event, decisions: tuple[Decision, ...]) -> None:
        self.handoffs.see(event)
        if isinstance(event, TrajectoryEvent):
            self._check_trajectory(event, decisions)
        elif isinstance(event, WorkerEvent):
            self._check_worker(event)
        else:
            self._check_run(event)
        left = set()
        for decision in decisions:
            self._check_decision(event, decision)
            if isinstance(decision, Shift):
                left.add((decision.source.job, decision.source.role))
            elif isinstance(decision, CancelShift):
                left.add(self.handoffs.cancel(decision))
        if left:
            demands = Counter((event.job, attempt.role) for attempt in self._open.values())
            self.handoffs.check_minimums(demands, left, event)

    @property
    def open_trajectories(self) -> frozenset[str]:
        return frozenset(self._open)

    # -------------------------------------------------------------------------------- events

    def _check_trajectory(self, event: TrajectoryEvent, decisions: tuple[Decision, ...]) -> None:
        name = event.trajectory_id
        if isinstance(event, Submitted):
            require(
                event.generation > self._ended.get(name, -1), "an ended attempt began again", event
            )
            require(name not in self._open, "an attempt began twice", event)
            self._open[name] = _Open(event.generation, event.role, event.generation)
            return
        attempt = self._open.get(name)
        if attempt is None or event.generation < attempt.generation:
            require(not decisions, "a late event was answered", event)
            return
        if isinstance(event, ToolStarted | ToolReturned):
            self._check_tool(event, attempt)
        else:
            self._check_turn(event, attempt)

    def _check_turn(self, event: TrajectoryEvent, attempt: _Open) -> None:
        name = event.trajectory_id
        match event:
            case TurnReady():
                self._free(name, attempt)
                attempt.generation = event.generation
                require(event.context_tokens >= attempt.context_tokens, "a context shrank", event)
                attempt.context_tokens = event.context_tokens
            case TurnFinished():
                self._free(name, attempt)
                attempt.context_tokens = event.context_tokens
            case PlaceRejected():
                self._free(name, attempt)
                worker = self._workers.get(event.worker_id)
                if worker and worker.ready.generation == event.worker_generation:
                    worker.shunned_until_t = event.t + REJECTED_S
            case Finished() | Failed():
                self._free(name, attempt)
                self._ended[name] = event.generation
                del self._open[name]
                is_rollout = attempt.role is Role.ROLLOUT
                self.num_finished += is_rollout and isinstance(event, Finished)

    def _check_tool(self, event: ToolStarted | ToolReturned, attempt: _Open) -> None:
        call = (event.turn, event.call_id)
        if isinstance(event, ToolStarted):
            require(call not in attempt.calls, "a tool call ran twice", event)
            attempt.calls.add(call)
        else:
            require(call in attempt.calls, "a result came without a call", event)
            require(call not in attempt.results, "a result was taken twice", event)
            attempt.results.add(call)

    def _check_worker(self, event: WorkerEvent) -> None:
        known = self._workers.get(event.worker_id)
        match event:
            case WorkerReady() if known is None or event.generation > known.ready.generation:
                self._remove(event.worker_id)
                self._workers[event.worker_id] = _Serving(event)
            case WorkerLost() if known is not None and event.generation >= known.ready.generation:
                self._remove(event.worker_id)

    def _remove(self, worker_id: str) -> None:
        worker = self._workers.pop(worker_id, None)
        for name in worker.running if worker is not None else ():
            self._open[name].worker_id = None

    def _check_run(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._version = event.version
                self._open_groups = event.accepted_groups + event.running_groups
                self._num_accepted = event.accepted_groups
            case Published():
                self._version = event.version
            case GroupRejected():
                self._open_groups -= 1
            case GroupAccepted(group_id=group_id):
                self._check_staleness(event)
                members = [name for name in self._open if name.startswith(group_id + "/")]
                require(not members, f"a group was accepted with {members} open", event)

    def _check_staleness(self, event: GroupAccepted) -> None:
        """Groups are trained on in the order in which they are accepted, and none is accepted
        further ahead of its step than groups may be begun."""
        trained_version = self._num_accepted // self._groups_per_step
        self._num_accepted += 1
        lag = trained_version - self._version
        require(lag <= self._max_staleness, f"a group is accepted {lag} versions ahead", event)

    # ----------------------------------------------------------------------------- decisions

    def _check_decision(self, event: Event, decision: Decision) -> None:
        match decision:
            case Admit():
                self._open_groups += decision.num_groups
                bound = (self._max_staleness + self._version + 1) * self._groups_per_step
                require(self._open_groups <= bound, "more groups than staleness allows", event)
            case Cut() | CancelShift() | Prewarm():
                pass
            case Shift():
                self.handoffs.shift(decision)
                self._close(decision.worker_id)
            case Evict():
                self._close(decision.worker_id)
            case HandoffOrder():
                self.handoffs.order(decision)
            case HandoffEnded():
                self.handoffs.ended(decision)
            case StartStep():
                self.handoffs.start_step(decision)
            case Place():
                self._check_place(event, decision)
            case Requeue():
                self._check_requeue(event, decision)

    def _close(self, worker_id: str) -> None:
        if worker_id in self._workers:
            self._workers[worker_id].is_closed = True

    def _check_requeue(self, event: Event, requeue: Requeue) -> None:
        attempt = self._open.get(requeue.trajectory_id)
        if attempt is None:
            raise InvariantBroken(f"an ended attempt was requeued: {requeue} after {event}")
        if requeue.reason is RequeueReason.SHIFT:
            worker = self._workers.get(attempt.worker_id or "")
            is_leaving = worker is not None and worker.is_closed
            require(is_leaving, "a turn was requeued off a worker that stays", event)
            self._free(requeue.trajectory_id, attempt)
        require(attempt.worker_id is None, "a turn was requeued that was not lost", event)

    def _check_place(self, event: Event, place: Place) -> None:
        attempt = self._open.get(place.trajectory_id)
        if attempt is None:
            raise InvariantBroken(f"an ended attempt was placed: {place} after {event}")
        require(place.generation == attempt.generation, "an old generation was placed", event)
        require(attempt.worker_id is None, "a trajectory got two slots", event)
        worker = self._workers.get(place.worker_id)
        if worker is None:
            raise InvariantBroken(f"a turn was placed on a lost worker: {place} after {event}")
        require(
            place.worker_generation == worker.ready.generation,
            "a turn was placed on an old generation of a worker",
            event,
        )
        require(worker.ready.role is attempt.role, "a turn was placed on another role", event)
        require(worker.ready.job == place.job, "a turn was placed on another job's worker", event)
        is_taking = not worker.is_closed and event.t >= worker.shunned_until_t
        require(is_taking, "a turn was placed on a worker that takes none", event)
        attempt.worker_id = place.worker_id
        worker.running.add(place.trajectory_id)
        require(
            len(worker.running) <= worker.ready.max_running, "a worker has too many turns", event
        )

    def _free(self, name: str, attempt: _Open) -> None:
        if attempt.worker_id is not None:
            self._workers[attempt.worker_id].running.discard(name)
            attempt.worker_id = None
