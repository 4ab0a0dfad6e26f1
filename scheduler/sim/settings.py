"""What a simulation file may say: workload, fleets, steps, policies with their variants.

Plain dataclasses read from a mapping, strict about unknown keys; whoever reads the file (the
command, a bench) brings the mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from scheduler.admission import CapacityAdmission, OverSample
from scheduler.costs import Shape, libra_shapes
from scheduler.events import Role
from scheduler.policies import AdmissionPolicy
from scheduler.shifting.wiring import can_start_with
from scheduler.sim.elastic import ElasticSettings, Layout, ModelSettings
from scheduler.sim.faults import FaultModel
from scheduler.sim.judging import JudgeModel
from scheduler.sim.specs import PlannerCost, StageTimes, WorkerSpec
from scheduler.sim.workload import PRESETS, AgentModel

Variant = dict[str, Any]
"""Options of a policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    preset: str = "swe"
    group_size: int = 16
    drift: float = 1.0
    """Length at the end of the run as a multiple of that at its start."""
    length_factor: float = 1.0
    max_tokens: int | None = None
    """Sampled tokens of an attempt, at most; None: the preset's bound."""
    signal: float | None = None
    """Overrides how much tool results tell; 0 is a negative control."""
    shuffles_tools: bool = False
    """Another one: every attempt gets the tool results of a stranger."""

    def model(self) -> AgentModel:
        if self.preset not in PRESETS:
            raise ValueError(f"agents.preset is {self.preset!r}, known are {sorted(PRESETS)}")
        model = replace(PRESETS[self.preset], length_factor=self.length_factor)
        if self.max_tokens is not None:
            model = replace(model, max_tokens=self.max_tokens)
        return model if self.signal is None else replace(model, signal=self.signal)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    num_steps: int = 3
    groups_per_step: int = 16
    max_staleness: int = 0
    train_seconds: float = 10.0
    pull_seconds: float = 2.0
    max_running_groups: int = 10**6
    over_sample: float | None = None
    """Start this many times the groups of a step and cut the rest; None: the capacity rule."""

    def admission(self) -> AdmissionPolicy:
        if self.over_sample is not None:
            return OverSample(
                groups_per_step=self.groups_per_step,
                num_steps=self.num_steps,
                factor=self.over_sample,
            )
        return CapacityAdmission(
            groups_per_step=self.groups_per_step,
            num_steps=self.num_steps,
            max_staleness=self.max_staleness,
            max_running_groups=self.max_running_groups,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """One file of `configs/sim/`."""

    name: str
    about: str = ""
    agents: AgentSettings = field(default_factory=AgentSettings)
    steps: StepSettings = field(default_factory=StepSettings)
    memory_share: float = 0.85
    """Of accelerator memory that serving may use; see `scheduler.costs.libra_shapes`."""
    max_running: int = 64
    """Slots of every worker."""
    fleets: dict[str, dict[int, int]] = field(default_factory=dict)
    """Name to number of workers by tensor-parallel degree."""
    layouts: dict[str, Layout] = field(default_factory=dict)
    """In place of fleets, where workers change roles: name to number of workers by role, at the
    start."""
    elastic: ElasticSettings | None = None
    """Where workers change roles: what they are. Policies are then shift policies."""
    policies: dict[str, list[Variant]]
    """Name to the variants that are tried; the best on the tuning seeds is reported. A variant may
    name another `policy` to build, so that a table can hold several forms of one."""
    baseline: str = "least_load"
    yardsticks: list[str] = field(default_factory=list)
    """Policies that know the truth."""
    faults: FaultModel = field(default_factory=FaultModel)
    seeds: int = 20
    tuning_seeds: int = 3

    def shapes(self) -> dict[str, Shape]:
        """By bucket; a bucket is a tensor-parallel degree."""
        table = libra_shapes(memory_share=self.memory_share)
        return {bucket_name(tp): shape for tp, shape in table.items()}

    def choices(self, policy: str) -> list[str]:
        """The fleets or layouts that a policy is tried on: `static` every split there is, others the
        layouts of the file that they can work with."""
        if self.elastic is None:
            return list(self.fleets)
        if policy == STATIC:
            return list(self.elastic.splits())
        has_judge = self.elastic.genrm is not None
        return [
            name
            for name, layout in self.layouts.items()
            if can_start_with(policy, layout, has_judge=has_judge)
        ]

    def layout(self, name: str) -> Layout:
        assert self.elastic is not None
        return self.layouts[name] if name in self.layouts else self.elastic.splits()[name]

    def workers(self, fleet: str) -> list[WorkerSpec]:
        shapes = self.shapes()
        return [
            WorkerSpec(
                worker_id=f"{bucket_name(tp)}-{i}",
                bucket=bucket_name(tp),
                shape=shapes[bucket_name(tp)],
                max_running=self.max_running,
            )
            for tp, number in self.fleets[fleet].items()
            for i in range(number)
        ]


def bucket_name(tp: int) -> str:
    return f"tp{tp}"


STATIC = "static"
"""The shift policy that keeps the layout."""

_SECTIONS = {"agents": AgentSettings, "steps": StepSettings, "faults": FaultModel}
_ELASTIC_SECTIONS = {
    "rollout": ModelSettings,
    "genrm": ModelSettings,
    "judge": JudgeModel,
    "times": StageTimes,
    "planner": PlannerCost,
}


def read_settings(data: Mapping[str, Any]) -> SimulationSettings:
    """Settings from a mapping, as a YAML file gives it."""
    values = dict(data)
    for name, cls in _SECTIONS.items():
        if name in values:
            values[name] = read_section(cls, values[name], name)
    if "elastic" in values:
        values["elastic"] = _read_elastic(values["elastic"])
    values["layouts"] = {
        name: {Role(role): number for role, number in layout.items()}
        for name, layout in values.get("layouts", {}).items()
    }
    settings: SimulationSettings = read_section(SimulationSettings, values, "the file")
    if bool(settings.layouts) is not (settings.elastic is not None):
        raise ValueError("layouts go with the section elastic: give both, or fleets and neither")
    if not settings.layouts and not settings.fleets:
        raise ValueError("the file lacks fleets, or layouts and the section elastic")
    if settings.baseline not in settings.policies:
        raise ValueError(
            f"baseline is {settings.baseline!r}, which is not among the policies "
            f"{sorted(settings.policies)}"
        )
    idle = [policy for policy in settings.policies if not settings.choices(policy)]
    if idle:
        raise ValueError(f"no layout gives {idle} a worker for each role, which they need: add one")
    return settings


def _read_elastic(data: Mapping[str, Any]) -> ElasticSettings:
    values = dict(data)
    for name, cls in _ELASTIC_SECTIONS.items():
        if name in values:
            values[name] = read_section(cls, values[name], f"elastic.{name}")
    values["training_sizes"] = tuple(values.get("training_sizes", ()))
    elastic: ElasticSettings = read_section(ElasticSettings, values, "elastic")
    return elastic


def read_section(cls: Any, values: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a mapping; `where` names it in errors about unknown and missing keys."""
    known = {field.name for field in fields(cls)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ValueError(f"{where} has no key {unknown}; known are {sorted(known)}")
    missing = [
        f.name
        for f in fields(cls)
        if f.default is MISSING and f.default_factory is MISSING and f.name not in values
    ]
    if missing:
        raise ValueError(f"{where} lacks {missing}")
    return cls(**values)
