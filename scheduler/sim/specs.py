"""What a simulated cluster is made of, and what a run of it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp

from numpy.random import Generator

from scheduler.costs import Shape, TrainCost
from scheduler.events import Role, Stage
from scheduler.gauges import GaugeReport
from scheduler.sim.requests import WorkerStats
from scheduler.sim.workload import AttemptPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker the cluster starts with."""

    worker_id: str
    bucket: str
    shape: Shape
    max_running: int
    role: Role = Role.ROLLOUT
    accelerators: tuple[str, ...] = ()
    is_preemptible: bool = True
    """Whether the fault model's lives apply to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """What an optimizer step takes."""

    num_steps: int
    groups_per_step: int
    train_seconds: float = 0.0
    pull_seconds: float = 0.0
    """From publication until a worker samples with the new weights."""
    training: TrainCost | None = None
    """Steps are done by the fleet's training workers and cost this; None: by others, in
    `train_seconds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Mean seconds of the stages of a handoff; defaults from published systems.

    An inference worker that swaps its model takes about 5 s (DynaRL 3.5-5, PivotRL's default 5);
    out of training 10.8 s and into it 8 s (Libra).
    """

    quiesce_s: float = 0.1
    release_s: float = 0.5
    release_training_s: float = 5.5
    acquire_s: float = 0.1
    load_s: float = 3.5
    load_training_s: float = 5.0
    warm_s: float = 1.0
    warm_training_s: float = 2.3
    restart_s: float = 30.0
    sigma: float = 0.35
    """Spread of log seconds."""
    requeue_s: float = 0.7
    """Until a turn that was requeued by a shift asks again; PivotRL: abort 0.1, dispatch 0.6."""

    def mean_s(self, stage: Stage, source: Role, target: Role) -> float:
        into, out_of = target is Role.TRAINING, source is Role.TRAINING
        match stage:
            case Stage.QUIESCE:
                return self.quiesce_s
            case Stage.RELEASE:
                return self.release_training_s if out_of else self.release_s
            case Stage.ACQUIRE:
                return self.acquire_s
            case Stage.LOAD:
                return self.load_training_s if into else self.load_s
            case Stage.WARM:
                return self.warm_training_s if into else self.warm_s
            case Stage.RESTART:
                return self.restart_s

    def total_s(self, source: Role, target: Role) -> float:
        """Mean time out of service."""
        return sum(
            self.mean_s(stage, source, target) for stage in Stage if stage is not Stage.RESTART
        )

    def draw_s(self, stage: Stage, source: Role, target: Role, rng: Generator) -> float:
        spread = exp(self.sigma * float(rng.normal()) - self.sigma**2 / 2)
        return self.mean_s(stage, source, target) * spread


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerCost:
    """Simulated time from a question to a shift policy until its plan takes effect; everybody goes on
    meanwhile. The defaults are what ours takes (`tests/bench/planner.py`)."""

    per_plan_us: float = 70.0
    per_candidate_us: float = 16.0
    per_attempt_us: float = 0.4
    """Open attempts, whose forecasts are looked at."""

    def seconds(self, plans: int, candidates: int, attempts: int) -> float:
        micros = plans * (self.per_plan_us + self.per_attempt_us * attempts)
        return 1e-6 * (micros + self.per_candidate_us * candidates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elasticity:
    """What a cluster whose workers change roles needs to know."""

    shapes: Mapping[tuple[Role, str, int], Shape]
    """By role, bucket and number of accelerators."""
    max_running: int
    times: StageTimes = field(default_factory=StageTimes)
    tick_s: float = 1.0
    planner: PlannerCost = field(default_factory=PlannerCost)


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
    prewarmed_tokens: int = 0
    """Context tokens computed ahead during tool calls, used or not."""
    num_events: int = 0
    num_decisions: int = 0
    num_lost_attempts: int = 0
    num_rejections: int = 0
    num_shifts: int = 0
    num_judged: int = 0
    train_seconds: float = 0.0
    """Worker seconds in optimizer steps."""
    shift_seconds: float = 0.0
    """Worker seconds out of service on the way to another duty."""
    workers: dict[str, WorkerStats] = field(default_factory=dict)
    costs: dict[str, GaugeReport] = field(default_factory=dict)
    """Predicted against observed seconds, by kind of work."""
