"""A cluster in simulated time: runs agents on workers and does what the scheduler decides.

The cluster is a driver like the live runtime: it stamps events, feeds them to a `Scheduler` one at
a time and applies the decisions, checking generations as a driver must. All that is random was
drawn before or comes from generators it was given, and events of one instant keep the order in
which they were scheduled, so a run is a function of its arguments.

Everything of one instant is applied before a worker begins its next action, so turns that arrive
together are batched together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from scheduler.core import Scheduler
from scheduler.costs import Shape
from scheduler.decisions import Admit, Cut, Decision, Place, Requeue
from scheduler.events import (
    Event,
    Failed,
    FailureKind,
    Finished,
    GroupAccepted,
    GroupRejected,
    PlaceRejected,
    Published,
    Role,
    RunStarted,
    StepEnded,
    StepStarted,
    Submitted,
    ToolReturned,
    ToolStarted,
    TrajectoryEvent,
    TurnFinished,
    TurnReady,
    WeightsLoaded,
    WorkerLost,
    WorkerReady,
)
from scheduler.sim.faults import Faults
from scheduler.sim.requests import DecodeWorker, Key, Request, WorkerStats
from scheduler.sim.worker import SkippingWorker
from scheduler.sim.workload import AttemptPlan, Workload

JOB = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker the cluster starts with."""

    worker_id: str
    bucket: str
    shape: Shape
    max_running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """What an optimizer step takes."""

    num_steps: int
    groups_per_step: int
    train_seconds: float = 0.0
    pull_seconds: float = 0.0
    """From publication until a worker samples with the new weights."""


@dataclass(slots=True)
class _Attempt:
    plan: AttemptPlan
    started_t: float
    generation: int = 0
    turn: int = 0
    done_tokens: int = 0
    """Of the turn in progress, kept when a worker is lost."""
    context_tokens: int = 0
    worker_id: str | None = None
    """Where the turn in progress runs."""
    home_id: str | None = None
    """Where its cache may lie."""
    is_over: bool = False


@dataclass(slots=True)
class _Server:
    spec: WorkerSpec
    worker: DecodeWorker
    generation: int = 0
    is_up: bool = True
    turns: dict[Key, _Attempt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One attempt, after the fact."""

    plan: AttemptPlan
    started_t: float
    ended_t: float


@dataclass(slots=True)
class ClusterResult:
    """What a run took and did."""

    seconds: float = 0.0
    step_ends: list[float] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    cut: list[AttemptPlan] = field(default_factory=list)
    """Attempts of groups given up because enough others were ready."""
    moved_tokens: int = 0
    """Context tokens of turns that were placed away from their cache."""
    num_events: int = 0
    num_decisions: int = 0
    num_lost_attempts: int = 0
    num_rejections: int = 0
    workers: dict[str, WorkerStats] = field(default_factory=dict)


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
    ) -> None:
        self.result = ClusterResult()
        self._specs = workers
        self._steps = steps
        self._workload = workload
        self._scheduler = scheduler
        self._faults = faults
        self._make_worker = make_worker
        self._listen = listen
        self._t = 0.0
        self._seq = 0
        self._order = 0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._servers: dict[str, _Server] = {}
        self._touched: dict[str, None] = {}
        self._due: dict[str, float] = {}
        self._groups: dict[str, int] = {}
        """Attempts still open, by group."""
        self._cut_groups: set[str] = set()
        self._attempts: dict[str, _Attempt] = {}
        self._num_groups = 0
        self._ready_groups = 0
        """Accepted and not yet trained on."""
        self._version = 0
        self._is_training = False

    def run(self) -> ClusterResult:
        """Until all steps are done."""
        for spec in self._specs:
            self._start_worker(spec, 0)
        self._send(RunStarted)
        while self._version < self._steps.num_steps:
            assert self._agenda, f"stuck at {self._t}: {len(self._attempts)} attempts are open"
            self._instant()
        self.result.seconds = self._t
        for worker_id, server in self._servers.items():
            self.result.workers[worker_id] = server.worker.stats
        return self.result

    # ---------------------------------------------------------------------------------- time

    def _at(self, t: float, action: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (t, self._order, action, args))

    def _instant(self) -> None:
        """All that happens at the next point in time."""
        self._t = self._agenda[0][0]
        while self._agenda and self._agenda[0][0] == self._t:
            _, _, action, args = heapq.heappop(self._agenda)
            action(*args)
        while self._touched:
            worker_id, _ = self._touched.popitem()
            self._plan(worker_id)

    def _plan(self, worker_id: str) -> None:
        server = self._servers[worker_id]
        if server.is_up:
            server.worker.plan(self._t)
            due = server.worker.next_t()
            if due < inf and due != self._due.get(worker_id):
                self._due[worker_id] = due
                self._at(due, self._worker_due, worker_id, server.generation, due)

    def _send(self, kind: type[Event], /, **fields: Any) -> None:
        self._seq += 1
        event = kind(t=self._t, seq=self._seq, job=JOB, **fields)
        decisions = self._scheduler.on(event)
        if self._listen is not None:
            self._listen(event, decisions)
        self.result.num_events += 1
        self.result.num_decisions += len(decisions)
        for decision in decisions:
            self._apply(decision)
        if isinstance(event, TrajectoryEvent) and self._faults.message_is_late():
            self._send_stale(event)

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
            case Admit(num_groups=num_groups):
                for _ in range(num_groups):
                    self._at(self._t, self._start_group, self._num_groups)
                    self._num_groups += 1
            case Cut(trajectory_id=trajectory_id):
                self._at(self._t, self._cut, self._attempts[trajectory_id])
            case Place():
                delay = self._faults.dispatch_s()
                if delay == 0:
                    self._serve(decision)
                else:
                    self._at(self._t + delay, self._serve, decision)
            case Requeue(trajectory_id=trajectory_id):
                attempt = self._attempts[trajectory_id]
                if attempt.generation == decision.generation:
                    self._at(self._t, self._ask_again, attempt, attempt.generation)

    # ----------------------------------------------------------------------------- attempts

    def _start_group(self, index: int) -> None:
        plans = self._workload.group(index)
        self._groups[plans[0].group_id] = len(plans)
        for plan in plans:
            self._start_attempt(plan, 0)

    def _start_attempt(self, plan: AttemptPlan, generation: int) -> None:
        attempt = _Attempt(plan, self._t, generation=generation, context_tokens=plan.prompt_tokens)
        self._attempts[plan.trajectory_id] = attempt
        self._send(
            Submitted,
            trajectory_id=plan.trajectory_id,
            generation=generation,
            group_id=plan.group_id,
            task_family=plan.task_family,
            prompt_tokens=plan.prompt_tokens,
        )
        self._at(self._t + plan.start_seconds, self._ask, attempt)

    def _ask(self, attempt: _Attempt) -> None:
        if attempt.is_over:
            return
        self._send(
            TurnReady,
            trajectory_id=attempt.plan.trajectory_id,
            generation=attempt.generation,
            turn=attempt.turn,
            context_tokens=attempt.context_tokens,
        )

    def _ask_again(self, attempt: _Attempt, generation: int) -> None:
        if not attempt.is_over and attempt.generation == generation:
            attempt.generation += 1
            self._ask(attempt)

    def _serve(self, place: Place) -> None:
        attempt = self._attempts.get(place.trajectory_id)
        if attempt is None or attempt.generation != place.generation:
            return
        server = self._servers[place.worker_id]
        if not server.is_up or server.generation != place.worker_generation:
            self.result.num_rejections += 1
            self._send(
                PlaceRejected,
                trajectory_id=place.trajectory_id,
                generation=place.generation,
                turn=place.turn,
                worker_id=place.worker_id,
                worker_generation=place.worker_generation,
            )
            return
        key = (JOB, place.trajectory_id)
        self._leave_home(attempt, key, place.worker_id)
        attempt.worker_id = attempt.home_id = place.worker_id
        server.turns[key] = attempt
        left = attempt.plan.turns[attempt.turn].tokens - attempt.done_tokens
        server.worker.add(self._t, Request(key, attempt.context_tokens, left))
        self._touched[place.worker_id] = None

    def _leave_home(self, attempt: _Attempt, key: Key, worker_id: str) -> None:
        home = attempt.home_id
        if home is not None and home != worker_id:
            self.result.moved_tokens += attempt.context_tokens
            self._servers[home].worker.forget(key)

    def _turn_ended(self, attempt: _Attempt) -> None:
        turn = attempt.plan.turns[attempt.turn]
        attempt.worker_id = None
        attempt.context_tokens += turn.tokens - attempt.done_tokens
        attempt.done_tokens = 0
        ids = {
            "trajectory_id": attempt.plan.trajectory_id,
            "generation": attempt.generation,
            "turn": attempt.turn,
        }
        self._send(TurnFinished, **ids, tokens=turn.tokens, context_tokens=attempt.context_tokens)
        tool = turn.tool
        if tool is None:
            self._finish(attempt)
            return
        self._send(ToolStarted, **ids, call_id=str(attempt.turn), tool=tool.tool)
        self._at(self._t + tool.seconds, self._tool_returned, attempt)

    def _tool_returned(self, attempt: _Attempt) -> None:
        if attempt.is_over:
            return
        if self._faults.box_fails():
            self._lose(attempt)
            return
        tool = attempt.plan.turns[attempt.turn].tool
        assert tool is not None
        self._send(
            ToolReturned,
            trajectory_id=attempt.plan.trajectory_id,
            generation=attempt.generation,
            turn=attempt.turn,
            call_id=str(attempt.turn),
            tool=tool.tool,
            status=tool.status,
            size_tokens=tool.size_tokens,
            seconds=tool.seconds,
            call_hash=tool.call_hash,
        )
        attempt.turn += 1
        attempt.context_tokens += tool.size_tokens
        self._ask(attempt)

    def _finish(self, attempt: _Attempt) -> None:
        plan = attempt.plan
        self._close(attempt)
        self.result.ended.append(Ended(plan=plan, started_t=attempt.started_t, ended_t=self._t))
        self._send(
            Finished,
            trajectory_id=plan.trajectory_id,
            generation=attempt.generation,
            tokens=plan.tokens,
        )
        self._member_ended(plan.group_id)

    def _lose(self, attempt: _Attempt) -> None:
        """The box is gone: the attempt starts over under a higher generation."""
        self._close(attempt)
        self.result.num_lost_attempts += 1
        self._send(
            Failed,
            trajectory_id=attempt.plan.trajectory_id,
            generation=attempt.generation,
            kind=FailureKind.INFRA,
        )
        self._start_attempt(attempt.plan, attempt.generation + 1)

    def _cut(self, attempt: _Attempt) -> None:
        """Cancel an attempt; a group that has lost one is rejected when all have ended."""
        if attempt.is_over:
            return
        key = (JOB, attempt.plan.trajectory_id)
        if attempt.worker_id is not None:
            server = self._servers[attempt.worker_id]
            if server.turns.pop(key, None) is not None:
                server.worker.abort(self._t, key)
                self._touched[attempt.worker_id] = None
        self._close(attempt)
        self._cut_groups.add(attempt.plan.group_id)
        self.result.cut.append(attempt.plan)
        self._send(
            Failed,
            trajectory_id=attempt.plan.trajectory_id,
            generation=attempt.generation,
            kind=FailureKind.CANCELLED,
        )
        self._member_ended(attempt.plan.group_id)

    def _member_ended(self, group_id: str) -> None:
        self._groups[group_id] -= 1
        if self._groups[group_id] > 0:
            return
        del self._groups[group_id]
        if group_id in self._cut_groups:
            self._give_up_finished_members(group_id)
            self._send(GroupRejected, group_id=group_id)
        else:
            self._ready_groups += 1
            self._send(GroupAccepted, group_id=group_id)
            self._train_if_ready()

    def _give_up_finished_members(self, group_id: str) -> None:
        ended = self.result.ended
        self.result.cut += [one.plan for one in ended if one.plan.group_id == group_id]
        self.result.ended = [one for one in ended if one.plan.group_id != group_id]

    def _close(self, attempt: _Attempt) -> None:
        attempt.is_over = True
        del self._attempts[attempt.plan.trajectory_id]
        if attempt.home_id is not None:
            self._servers[attempt.home_id].worker.forget((JOB, attempt.plan.trajectory_id))

    # ------------------------------------------------------------------------------ workers

    def _start_worker(self, spec: WorkerSpec, generation: int) -> None:
        server = _Server(spec, self._make_worker(spec.shape), generation)
        self._servers[spec.worker_id] = server
        self._due.pop(spec.worker_id, None)
        self._send(
            WorkerReady,
            worker_id=spec.worker_id,
            generation=generation,
            role=Role.ROLLOUT,
            bucket=spec.bucket,
            tp=spec.shape.tp,
            max_running=spec.max_running,
            kv_tokens=spec.shape.kv_tokens,
            policy_version=self._version,
        )
        life = self._faults.life_s()
        if life is not None:
            self._at(self._t + life, self._lose_worker, server)

    def _worker_due(self, worker_id: str, generation: int, due: float) -> None:
        server = self._servers[worker_id]
        is_current = server.is_up and server.generation == generation
        if not is_current or server.worker.next_t() != due:
            return
        del self._due[worker_id]
        self._touched[worker_id] = None
        for key in server.worker.advance(self._t):
            self._turn_ended(server.turns.pop(key))

    def _lose_worker(self, server: _Server) -> None:
        for key, attempt in server.turns.items():
            left = attempt.plan.turns[attempt.turn].tokens - attempt.done_tokens
            done = min(server.worker.abort(self._t, key), left - 1)
            attempt.done_tokens += done
            attempt.context_tokens += done
            attempt.worker_id = None
        server.turns.clear()
        server.is_up = False
        generation = server.generation
        detected_t = self._t + self._faults.detection_s()
        self._at(detected_t, self._report_loss, server.spec.worker_id, generation)
        back_t = self._t + self._faults.down_s()
        self._at(back_t, self._start_worker, server.spec, generation + 1)

    def _report_loss(self, worker_id: str, generation: int) -> None:
        self._send(WorkerLost, worker_id=worker_id, generation=generation)

    # ------------------------------------------------------------------------------ training

    def _train_if_ready(self) -> None:
        if not self._is_training and self._ready_groups >= self._steps.groups_per_step:
            self._is_training = True
            self._ready_groups -= self._steps.groups_per_step
            self._send(StepStarted, step=self._version)
            self._at(self._t + self._steps.train_seconds, self._step_ended)

    def _step_ended(self) -> None:
        self._is_training = False
        self.result.step_ends.append(self._t)
        self._send(StepEnded, step=self._version, seconds=self._steps.train_seconds)
        self._version += 1
        self._send(Published, version=self._version)
        for worker_id, server in self._servers.items():
            self._at(
                self._t + self._steps.pull_seconds,
                self._load_weights,
                worker_id,
                server.generation,
                self._version,
            )
        self._train_if_ready()

    def _load_weights(self, worker_id: str, generation: int, version: int) -> None:
        server = self._servers[worker_id]
        if server.is_up and server.generation == generation:
            self._send(WeightsLoaded, worker_id=worker_id, generation=generation, version=version)
