"""What work has cost so far, against what the cost models said: learned as a run goes on.

Each kind of work has a gauge: seconds observed over seconds predicted, fading, and how far predictions
were off. Kinds are the decoding of turns by role and bucket, optimizer steps, loads of new weights,
and handoffs by the roles they lead from and to. All of it comes from the events and decisions of the
log, so it replays with them, and a run's log is enough to judge cost models afterwards.

Where nothing is known beforehand, the first observations make the model: seconds in proportion to
tokens a worker for training, and one time for all handoffs, loads or decode steps of a kind.

Invariants
- A prediction is made before its observation is learned from.
- Nothing here looks at what has not happened: an end teaches what began before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.costs import Shape, TrainCost
from scheduler.decisions import Decision, HandoffEnded, Outcome, Place, Requeue, Shift, StartStep
from scheduler.events import (
    BatchReady,
    Event,
    Failed,
    Finished,
    PlaceRejected,
    Progress,
    Role,
    StepEnded,
    Submitted,
    TrajectoryEvent,
    TurnFinished,
    TurnReady,
    WeightsLoaded,
    WorkerReady,
)
from scheduler.fleet import Key
from scheduler.gauges import Gauge, GaugeReport
from scheduler.meter import WorkerMeter

_FEWEST_STEPS = 8
"""Turns of fewer tokens say more of dispatch than of decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCosts:
    """What is believed beforehand; what is missing is learned from nothing."""

    shapes: Mapping[tuple[Role, str], Shape] = field(default_factory=dict)
    """By role and bucket."""
    training: TrainCost | None = None
    shift_s: Mapping[tuple[Role, Role], float] = field(default_factory=dict)
    """Expected out of service, from one role to another."""


@dataclass(slots=True)
class _Turn:
    """One that runs."""

    generation: int
    turn: int
    worker: tuple[str, int]
    context_tokens: int
    since_t: float
    sequence_s: float
    """The worker's meters when it began, or when its first tokens were reported."""
    token_s: float
    prefill_s: float
    """Predicted for what was not cached; 0 once tokens have been reported."""
    tokens: int = 0
    """Sampled by then."""


@dataclass(slots=True)
class _Shift:
    generation: int
    since_t: float
    source: Role
    target: Role


class Calibration:
    """Fed with every event and its decisions, after the scheduler has answered."""

    def __init__(self, known: KnownCosts | None = None) -> None:
        self._known = known or KnownCosts()
        self._gauges: dict[str, Gauge] = {}
        self._workers: dict[tuple[str, int], tuple[Role, str, WorkerMeter]] = {}
        self._generations: dict[str, int] = {}
        self._roles: dict[Key, Role] = {}
        self._contexts: dict[Key, int] = {}
        """Of the turn that is ready."""
        self._cached: dict[Key, tuple[tuple[str, int], int]] = {}
        """Where a trajectory's last turn ran, and the context it left there."""
        self._turns: dict[Key, _Turn] = {}
        self._shifts: dict[str, _Shift] = {}
        self._batches: dict[str, tuple[int, int]] = {}
        """Tokens and workers of the step of each job."""

    # -------------------------------------------------------------------------------- answers

    def shift_s(self, source: Role, target: Role) -> float | None:
        """Expected out of service, as learned; None where nothing is known."""
        gauge = self._gauges.get(_shift_name(source, target))
        believed = self._known.shift_s.get((source, target))
        if gauge is None:
            return believed
        return gauge.scale * (1.0 if believed is None else believed)

    @property
    def train_scale(self) -> float:
        """Seconds of a step over those of the cost model."""
        gauge = self._gauges.get("training step")
        return 1.0 if gauge is None else gauge.scale

    def reports(self) -> dict[str, GaugeReport]:
        """How far predictions were off, by kind of work."""
        return {name: gauge.report() for name, gauge in sorted(self._gauges.items())}

    def state(self) -> dict[str, Any]:
        return {name: gauge.state() for name, gauge in self._gauges.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._gauges = {name: Gauge.from_state(saved) for name, saved in state.items()}

    # --------------------------------------------------------------------------------- events

    def on(self, event: Event, decisions: Sequence[Decision]) -> None:
        match event:
            case TurnFinished():
                self._finished(event)
            case Progress():
                self._progressed(event)
            case TurnReady():
                self._leave(event)
                self._contexts[event.job, event.trajectory_id] = event.context_tokens
            case PlaceRejected():
                self._leave(event)
            case Submitted():
                self._roles[event.job, event.trajectory_id] = event.role
            case Finished() | Failed():
                self._ended(event)
            case WorkerReady():
                self._ready(event)
            case WeightsLoaded():
                if event.seconds > 0:
                    self._see(f"weights to {self._role_of(event)}", event.seconds, 1.0, guess=True)
            case BatchReady():
                self._batches[event.job] = (event.tokens, 0)
            case StepEnded():
                self._stepped(event)
            case _:
                pass
        for decision in decisions:
            self._decided(decision)

    def _decided(self, decision: Decision) -> None:
        match decision:
            case Place():
                self._placed(decision)
            case Requeue():
                self._vacate((decision.job, decision.trajectory_id), decision.t)
            case StartStep():
                tokens, _ = self._batches.get(decision.job, (0, 0))
                self._batches[decision.job] = (tokens, len(decision.workers))
            case Shift():
                roles = decision.source.role, decision.target.role
                self._shifts[decision.worker_id] = _Shift(decision.generation, decision.t, *roles)
            case HandoffEnded():
                self._handed_over(decision)
            case _:
                pass

    # ---------------------------------------------------------------------------------- turns

    def _ready(self, event: WorkerReady) -> None:
        if self._generations.get(event.worker_id, -1) >= event.generation:
            return
        before = (event.worker_id, self._generations.get(event.worker_id, -1))
        self._workers.pop(before, None)
        self._generations[event.worker_id] = event.generation
        self._workers[event.worker_id, event.generation] = (
            event.role,
            event.bucket,
            WorkerMeter(event.t),
        )

    def _placed(self, place: Place) -> None:
        key = (place.job, place.trajectory_id)
        worker = (place.worker_id, place.worker_generation)
        known = self._workers.get(worker)
        if known is None:
            return
        role, bucket, meter = known
        context = self._contexts.get(key, 0)
        home, cached = self._cached.get(key, (worker, 0))
        cached = min(cached, context) if home == worker else 0
        shape = self._known.shapes.get((role, bucket))
        prefill_s = 0.0 if shape is None else shape.prefill.seconds(context - cached, cached)
        meter.join(place.t, context)
        self._turns[key] = _Turn(
            place.generation, place.turn, worker, context, place.t, meter.sequence_s, meter.token_s,
            prefill_s,
        )  # fmt: skip

    def _progressed(self, event: Progress) -> None:
        """From the first tokens on only decoding is timed."""
        turn = self._turns.get((event.job, event.trajectory_id))
        if turn is None or turn.generation != event.generation or turn.tokens or not event.tokens:
            return
        meter = self._meter(turn)
        if meter is not None:
            meter.pass_to(event.t)
            turn.since_t, turn.sequence_s, turn.token_s = event.t, meter.sequence_s, meter.token_s
            turn.prefill_s, turn.tokens = 0.0, event.tokens

    def _finished(self, event: TurnFinished) -> None:
        key = (event.job, event.trajectory_id)
        turn = self._turns.get(key)
        if turn is None or event.generation < turn.generation:
            return
        meter = self._meter(turn)
        steps = event.tokens - turn.tokens
        elapsed_s = event.t - turn.since_t
        if meter is not None and steps >= _FEWEST_STEPS and elapsed_s > 0:
            meter.pass_to(event.t)
            sequences = (meter.sequence_s - turn.sequence_s) / elapsed_s
            tokens = (meter.token_s - turn.token_s) / elapsed_s + sequences * steps / 2
            self._see_turn(turn, steps, elapsed_s, sequences, tokens)
        self._cached[key] = (turn.worker, event.context_tokens)
        self._vacate(key, event.t)

    def _see_turn(
        self, turn: _Turn, steps: int, elapsed_s: float, sequences: float, kv_tokens: float
    ) -> None:
        role, bucket, _ = self._workers[turn.worker]
        shape = self._known.shapes.get((role, bucket))
        name = f"turns of {role} on {bucket}"
        if shape is None:
            self._see(name, elapsed_s, float(steps), guess=True)
            return
        cost = shape.decode
        step_s = cost.d + cost.a * kv_tokens + max(cost.b, cost.b0 + cost.c * sequences)
        self._see(name, elapsed_s, steps * step_s + turn.prefill_s)

    def _leave(self, event: TrajectoryEvent) -> None:
        key = (event.job, event.trajectory_id)
        turn = self._turns.get(key)
        if turn is not None and event.generation >= turn.generation:
            self._vacate(key, event.t)

    def _ended(self, event: Finished | Failed) -> None:
        key = (event.job, event.trajectory_id)
        turn = self._turns.get(key)
        if turn is not None and event.generation < turn.generation:
            return
        self._vacate(key, event.t)
        for book in (self._roles, self._contexts, self._cached):
            book.pop(key, None)

    def _vacate(self, key: Key, t: float) -> None:
        turn = self._turns.pop(key, None)
        meter = None if turn is None else self._meter(turn)
        if turn is not None and meter is not None:
            meter.leave(t, turn.context_tokens)

    def _meter(self, turn: _Turn) -> WorkerMeter | None:
        known = self._workers.get(turn.worker)
        return None if known is None else known[2]

    # ------------------------------------------------------------------- training and handoffs

    def _stepped(self, event: StepEnded) -> None:
        tokens, workers = self._batches.pop(event.job, (0, 0))
        if not (tokens and workers and event.seconds > 0):
            return
        cost = self._known.training
        if cost is None:
            self._see("training step", event.seconds, tokens / workers, guess=True)
        else:
            self._see("training step", event.seconds, cost.seconds(tokens, workers))

    def _handed_over(self, ended: HandoffEnded) -> None:
        shift = self._shifts.pop(ended.worker_id, None)
        if shift is None or ended.outcome is not Outcome.COMPLETED:
            return
        believed = self._known.shift_s.get((shift.source, shift.target))
        name = _shift_name(shift.source, shift.target)
        self._see(name, ended.t - shift.since_t, believed or 1.0, guess=believed is None)

    def _role_of(self, event: WeightsLoaded) -> str:
        known = self._workers.get((event.worker_id, event.generation))
        return "a worker" if known is None else str(known[0])

    def _see(self, name: str, observed_s: float, predicted: float, *, guess: bool = False) -> None:
        """`guess`: `predicted` is in arbitrary units, of which nothing is known beforehand."""
        gauge = self._gauges.get(name)
        if gauge is None:
            gauge = self._gauges[name] = Gauge(is_guess=guess)
        gauge.see(observed_s, predicted)


def _shift_name(source: Role, target: Role) -> str:
    return f"handoff {source} to {target}"
