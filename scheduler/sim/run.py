"""Policies side by side on the same agents.

Every policy chooses its best fleet and variant on tuning seeds and is then measured on other seeds,
the same ones for all: ours is tuned no more than its rivals, and differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np

from scheduler.calibration import Calibration, KnownCosts
from scheduler.core import Scheduler
from scheduler.decisions import Decision
from scheduler.estimators.oracle import TotalTokens
from scheduler.events import Event, Role
from scheduler.gauges import GaugeReport
from scheduler.sim.cluster import Cluster
from scheduler.sim.elastic import ElasticRun, ElasticSettings
from scheduler.sim.faults import Faults
from scheduler.sim.settings import SimulationSettings, Variant, bucket_name
from scheduler.sim.specs import ClusterResult, StepSpec
from scheduler.sim.workload import AgentWorkload, Workload
from scheduler.views import TrajectoryView
from scheduler.wiring import World, wire

MakeWorkload = Callable[[int], Workload]
"""By seed."""
Listener = Callable[[Event, tuple[Decision, ...]], None]

_FIRST_TUNING_SEED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run came to."""

    seconds: float
    tokens_per_s: float
    tail_seconds: float
    """Mean over steps: from the 90th percentile of ends to the last end."""
    decode_share: float
    """Of worker time spent decoding; the rest is prefill and bubble."""
    prefill_share: float
    moved_ratio: float
    """Context tokens placed away from their cache, per sampled token."""
    preemptions: int
    train_share: float
    """Of worker time spent in optimizer steps ..."""
    shift_share: float
    """... and out of service on the way to another role."""
    shifts: int
    long_kept: float
    """Share of the longest tenth of all attempts that was trained on, lost ones apart."""
    kept_by_length: tuple[float, ...]
    """The same for each quarter of all attempts, from short to long."""
    costs: dict[str, GaugeReport]
    """Predicted against observed seconds, by kind of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a policy does best with."""

    fleet: str
    variant: Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    policy: str
    choice: Choice
    figures: tuple[Figures, ...]
    """One a seed."""
    seconds_by_fleet: dict[str, float]
    """Best variant's mean on the tuning seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    settings: SimulationSettings
    results: tuple[PolicyResult, ...]
    same_fleet: dict[str, tuple[Figures, ...]] = field(default_factory=dict)
    """The baseline on each policy's fleet, by policy, with its best variant there, or on its own
    best where it cannot be on that one (a layout without a worker for each role)."""


def workload_of(settings: SimulationSettings) -> MakeWorkload:
    """The made-up agents of a settings file."""
    agents = settings.agents
    groups = settings.steps.num_steps * settings.steps.groups_per_step

    def make(seed: int) -> Workload:
        return AgentWorkload(
            model=agents.model(),
            seed=seed,
            group_size=agents.group_size,
            drift=agents.drift,
            drift_groups=groups,
            shuffles_tools=agents.shuffles_tools,
        )

    return make


def simulate(
    settings: SimulationSettings,
    make_workload: MakeWorkload,
    policy: str,
    choice: Choice,
    seed: int,
    listen: Listener | None = None,
) -> ClusterResult:
    """One run of one policy on one fleet."""
    workload = make_workload(seed)
    if settings.elastic is not None:
        return _simulate_elastic(settings, settings.elastic, workload, policy, choice, seed, listen)
    steps = settings.steps
    world = World(
        shapes=settings.shapes(),
        buckets=tuple(bucket_name(tp) for tp in sorted(settings.fleets[choice.fleet])),
        max_tokens=settings.agents.model().max_tokens,
        seed=seed,
        truth=_truth(workload),
    )
    calibration = Calibration(
        KnownCosts(shapes={(Role.ROLLOUT, name): shape for name, shape in world.shapes.items()})
    )
    options = dict(choice.variant)
    wired = wire(options.pop("policy", policy), options, world)
    return Cluster(
        workers=settings.workers(choice.fleet),
        steps=StepSpec(
            num_steps=steps.num_steps,
            groups_per_step=steps.groups_per_step,
            train_seconds=steps.train_seconds,
            pull_seconds=steps.pull_seconds,
        ),
        workload=workload,
        scheduler=Scheduler(
            routing=wired.routing,
            admission=steps.admission(),
            observers=wired.observers,
            exploration=wired.exploration,
            prewarming=wired.prewarming,
            learners=wired.learners,
            calibration=calibration,
        ),
        faults=Faults(settings.faults, np.random.default_rng((seed, 7))),
        listen=listen,
    ).run()


def _simulate_elastic(
    settings: SimulationSettings,
    elastic: ElasticSettings,
    workload: Workload,
    policy: str,
    choice: Choice,
    seed: int,
    listen: Listener | None,
) -> ClusterResult:
    steps = settings.steps
    options = dict(choice.variant)
    return ElasticRun(
        settings=elastic,
        num_steps=steps.num_steps,
        groups_per_step=steps.groups_per_step,
        max_staleness=steps.max_staleness,
        pull_seconds=steps.pull_seconds,
        max_running=settings.max_running,
        faults=settings.faults,
    ).play(
        workload=workload,
        admission=steps.admission(),
        policy=options.pop("policy", policy),
        options=options,
        layout=settings.layout(choice.fleet),
        seed=seed,
        listen=listen,
    )


def _truth(workload: Workload) -> TotalTokens:
    @lru_cache(maxsize=256)
    def totals(index: int) -> dict[str, int]:
        return {plan.trajectory_id: plan.tokens for plan in workload.group(index)}

    def truth(trajectory: TrajectoryView) -> int:
        return totals(int(trajectory.group_id[1:]))[trajectory.trajectory_id]

    return truth


def figures_of(result: ClusterResult, groups_per_step: int, group_size: int) -> Figures:
    stats = list(result.workers.values())
    worker_seconds = result.seconds * len(stats)
    tokens = sum(ended.plan.tokens for ended in result.ended)
    per_step = groups_per_step * group_size
    ends = sorted(ended.ended_t for ended in result.ended)
    steps = [ends[i : i + per_step] for i in range(0, len(ends) - per_step + 1, per_step)]
    return Figures(
        seconds=result.seconds,
        tokens_per_s=tokens / result.seconds,
        tail_seconds=fmean(step[-1] - step[int(0.9 * len(step))] for step in steps),
        decode_share=sum(s.decode_seconds for s in stats) / worker_seconds,
        prefill_share=sum(s.prefill_seconds for s in stats) / worker_seconds,
        moved_ratio=result.moved_tokens / tokens,
        preemptions=sum(s.preemptions for s in stats),
        train_share=result.train_seconds / worker_seconds,
        shift_share=result.shift_seconds / worker_seconds,
        shifts=result.num_shifts,
        long_kept=_kept(result, 0.9, 1.0),
        kept_by_length=tuple(_kept(result, at / 4, (at + 1) / 4) for at in range(4)),
        costs=result.costs,
    )


def _kept(result: ClusterResult, low: float, high: float) -> float:
    """Starvation of long attempts shows here: quantiles are over kept and cut ones together."""
    kept = [ended.plan.tokens for ended in result.ended]
    everything = sorted([*kept, *(plan.tokens for plan in result.cut)])
    limits = [*everything, everything[-1] + 1]
    least, below = limits[int(low * len(everything))], limits[int(high * len(everything))]
    num_all = sum(least <= tokens < below for tokens in everything)
    return sum(least <= tokens < below for tokens in kept) / num_all if num_all else 1.0


def compare(
    settings: SimulationSettings,
    make_workload: MakeWorkload,
    tell: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Tune every policy, then measure all of them on the same fresh seeds."""
    bench = _Bench(settings, make_workload)
    tuned = {}
    for policy, variants in settings.policies.items():
        tuned[policy] = bench.tune(policy, variants or [{}])
        best = min(tuned[policy].values(), key=lambda option: option[0])
        tell(f"{policy}: {best[0]:.0f} s on {best[1].fleet} with {best[1].variant}")
    results = []
    same_fleet = {}
    for policy, by_fleet in tuned.items():
        _, choice = min(by_fleet.values(), key=lambda option: option[0])
        results.append(
            PolicyResult(
                policy=policy,
                choice=choice,
                figures=bench.measure(policy, choice),
                seconds_by_fleet={fleet: seconds for fleet, (seconds, _) in by_fleet.items()},
            )
        )
        on_baseline = tuned[settings.baseline]
        best = min(on_baseline.values(), key=lambda option: option[0])
        _, baseline_choice = on_baseline.get(choice.fleet, best)
        same_fleet[policy] = bench.measure(settings.baseline, baseline_choice)
        tell(f"{policy}: measured on {settings.seeds} seeds")
    return Comparison(settings=settings, results=tuple(results), same_fleet=same_fleet)


class _Bench:
    """Runs with memory: the same run is not done twice."""

    def __init__(self, settings: SimulationSettings, make_workload: MakeWorkload) -> None:
        self._settings = settings
        self._make_workload = make_workload
        self._memory: dict[tuple[Any, ...], Figures] = {}

    def tune(self, policy: str, variants: Sequence[Variant]) -> dict[str, tuple[float, Choice]]:
        """By fleet: the best variant and its mean time on the tuning seeds."""
        seeds = range(_FIRST_TUNING_SEED, _FIRST_TUNING_SEED + self._settings.tuning_seeds)
        return {
            fleet: min(
                (self._mean_seconds(policy, Choice(fleet=fleet, variant=variant), seeds)
                 for variant in variants),
                key=lambda option: option[0],
            )
            for fleet in self._settings.choices(policy)
        }  # fmt: skip

    def measure(self, policy: str, choice: Choice) -> tuple[Figures, ...]:
        return tuple(self._run(policy, choice, seed) for seed in range(self._settings.seeds))

    def _mean_seconds(
        self, policy: str, choice: Choice, seeds: Sequence[int]
    ) -> tuple[float, Choice]:
        return fmean(self._run(policy, choice, seed).seconds for seed in seeds), choice

    def _run(self, policy: str, choice: Choice, seed: int) -> Figures:
        key = (policy, choice.fleet, _frozen(choice.variant), seed)
        if key not in self._memory:
            result = simulate(self._settings, self._make_workload, policy, choice, seed)
            per_step = self._settings.steps.groups_per_step
            group_size = len(self._make_workload(seed).group(0))
            self._memory[key] = figures_of(result, per_step, group_size)
        return self._memory[key]


def _frozen(variant: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, repr(value)) for key, value in variant.items()))
