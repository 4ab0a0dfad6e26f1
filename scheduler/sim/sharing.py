"""Files about several jobs on one fleet, and the ways to share it side by side.

A file with `jobs` in place of `policies` is one of these. Each way is played with the same attempts; the
partition is the best there is, found by trying every one on a seed of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scheduler.sim.settings import AgentSettings, read_section
from scheduler.sim.share_policies import Partition, StrictTurns
from scheduler.sim.shared_fleet import (
    Batch,
    SharedFleet,
    SharedFleetRun,
    SharedJob,
    SharePolicy,
    ShareResult,
)
from scheduler.sim.statistics import Ratio, speedup
from scheduler.sim.workload import AgentWorkload, AttemptPlan
from scheduler.slices import Slices, Tenant

_TUNING_SEED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    agents: AgentSettings
    num_steps: int = 6
    groups_per_step: int = 8
    token_ms: float = 12.0
    """Of one attempt, on any slot."""
    max_running: int = 16
    train_token_us: float = 480.0
    """On one slot."""
    max_train_slots: int = 4

    def job(self, name: str, seed: int) -> SharedJob:
        num_groups = self.num_steps * self.groups_per_step
        workload = AgentWorkload(
            model=self.agents.model(),
            seed=seed,
            group_size=self.agents.group_size,
            drift=self.agents.drift,
            drift_groups=num_groups,
        )
        groups = [workload.group(index) for index in range(num_groups)]
        size = self.groups_per_step
        return SharedJob(
            name=name,
            batches=[self._batch(groups[at : at + size]) for at in range(0, num_groups, size)],
            max_running=self.max_running,
            max_train_slots=self.max_train_slots,
        )

    def _batch(self, groups: Sequence[tuple[AttemptPlan, ...]]) -> Batch:
        plans = [plan for group in groups for plan in group]
        return Batch(
            attempts_s=tuple(self._attempt_s(plan) for plan in plans),
            train_slot_s=1e-6 * self.train_token_us * sum(plan.tokens for plan in plans),
        )

    def _attempt_s(self, plan: AttemptPlan) -> float:
        tools_s = sum(turn.tool.seconds for turn in plan.turns if turn.tool is not None)
        return 1e-3 * self.token_ms * plan.tokens + tools_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSettings:
    name: str
    about: str = ""
    fleet: SharedFleet
    jobs: Mapping[str, JobSettings]
    slice_s: float = 60.0
    """Of both ways to share by time."""
    seeds: int = 20

    def draw(self, seed: int) -> list[SharedJob]:
        return [
            job.job(name, seed * len(self.jobs) + i)
            for i, (name, job) in enumerate(self.jobs.items())
        ]


def read_sharing(data: Mapping[str, Any]) -> SharingSettings:
    """Settings from a mapping, as a YAML file gives it."""
    values = dict(data)
    values["fleet"] = read_section(SharedFleet, values.get("fleet", {}), "fleet")
    values["jobs"] = {
        name: _read_job(job, f"jobs.{name}") for name, job in values.get("jobs", {}).items()
    }
    settings: SharingSettings = read_section(SharingSettings, values, "the file")
    if not 0 < len(settings.jobs) <= settings.fleet.num_slots:
        raise ValueError(
            f"{len(settings.jobs)} jobs on {settings.fleet.num_slots} slots: a partition needs a job, "
            "and a slot for each"
        )
    return settings


def _read_job(data: Mapping[str, Any], where: str) -> JobSettings:
    values = dict(data)
    values["agents"] = read_section(AgentSettings, values.get("agents", {}), f"{where}.agents")
    job: JobSettings = read_section(JobSettings, values, where)
    return job


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRow:
    """One way to share, over all seeds."""

    policy: str
    makespan_s: float
    vs_partition: Ratio
    mean_end_s: float
    """Mean over jobs."""
    bubble: float
    switches: float
    cold_switches: float


PARTITION, SLICES = "partition", "slices (ours)"
HEADINGS = (
    "policy", "makespan s", "x partition (95 %)", "mean end of a job s", "bubble", "switches", "cold",
)  # fmt: skip


def compare_sharing(
    settings: SharingSettings, tell: Callable[[str], None] = lambda line: None
) -> list[SharingRow]:
    partition = best_partition(settings)
    tell(f"best partition: {partition}")
    results = {
        name: [
            SharedFleetRun(settings.fleet, settings.draw(seed), make(), lends=name == SLICES).play()
            for seed in range(settings.seeds)
        ]
        for name, make in _ways(settings, partition).items()
    }
    baseline = [result.makespan_s for result in results[PARTITION]]
    return [_row(name, played, baseline) for name, played in results.items()]


def _ways(
    settings: SharingSettings, partition: Mapping[str, int]
) -> dict[str, Callable[[], SharePolicy]]:
    num_slots = settings.fleet.num_slots
    return {
        PARTITION: lambda: Partition(partition),
        "strict turns": lambda: StrictTurns(num_slots, list(settings.jobs), settings.slice_s),
        SLICES: lambda: _slices(settings),
    }


def _slices(settings: SharingSettings) -> Slices:
    slices = Slices(grace_s=settings.slice_s)
    slices.add_slots(0.0, [f"s{i:02}" for i in range(settings.fleet.num_slots)])
    for name in settings.jobs:
        slices.join(0.0, Tenant(job=name, wanted=0, slice_s=settings.slice_s))
    return slices


def best_partition(settings: SharingSettings) -> dict[str, int]:
    """That with the shortest makespan on a seed that is not measured: jobs that share nothing take as
    long as each would alone."""
    num_slots = settings.fleet.num_slots
    alone_s: dict[tuple[str, int], float] = {}
    for job in settings.draw(_TUNING_SEED):
        for number in range(1, num_slots - len(settings.jobs) + 2):
            policy = Partition({job.name: number})
            run = SharedFleetRun(settings.fleet, [job], policy, lends=False)
            alone_s[job.name, number] = run.play().makespan_s
    return min(
        _partitions(list(settings.jobs), num_slots),
        key=lambda partition: max(alone_s[share] for share in partition.items()),
    )


def _partitions(names: list[str], num_slots: int) -> Iterator[dict[str, int]]:
    first, *rest = names
    if not rest:
        yield {first: num_slots}
        return
    for own in range(1, num_slots - len(rest) + 1):
        for others in _partitions(rest, num_slots - own):
            yield {first: own, **others}


def _row(name: str, results: list[ShareResult], baseline: list[float]) -> SharingRow:
    return SharingRow(
        policy=name,
        makespan_s=fmean(result.makespan_s for result in results),
        vs_partition=speedup(baseline, [result.makespan_s for result in results]),
        mean_end_s=fmean(fmean(result.ended_s.values()) for result in results),
        bubble=fmean(result.bubble for result in results),
        switches=fmean(result.switches for result in results),
        cold_switches=fmean(result.cold_switches for result in results),
    )


def cells_of(row: SharingRow) -> tuple[str, ...]:
    ratio = row.vs_partition
    return (
        row.policy,
        f"{row.makespan_s:.0f}",
        f"{ratio.mean:.3f} ({ratio.low:.3f}-{ratio.high:.3f})",
        f"{row.mean_end_s:.0f}",
        f"{row.bubble:.2f}",
        f"{row.switches:.0f}",
        f"{row.cold_switches:.0f}",
    )
