"""Simulations in which workers change roles: what a file may say, and one run of it.

All workers are alike: the same accelerators, which serve the policy, serve the reward model, or train.
A layout says how many begin in which role. `static` keeps it, and is tried in every split there is,
so that a shifting policy is compared with the best one and not with a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduler.calibration import Calibration, KnownCosts
from scheduler.core import Scheduler
from scheduler.costs import PUBLISHED, DecodeCost, PrefillCost, Shape, TrainCost
from scheduler.decisions import Decision
from scheduler.events import Event, Role
from scheduler.routing.least_load import LeastLoad
from scheduler.shifting.selection import ShiftWorld
from scheduler.shifting.wiring import wire_shifts
from scheduler.sim.cluster import Cluster
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.judging import JudgeModel
from scheduler.sim.specs import (
    ClusterResult,
    Elasticity,
    PlannerCost,
    StageTimes,
    StepSpec,
    WorkerSpec,
)
from scheduler.sim.workload import Workload

Layout = Mapping[Role, int]

_LIMIT_S = 3e5
"""No simulated run is meant to take so long: a policy that leaves work to nobody is told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """A model as one worker serves it."""

    model: str
    """Constants by name; see `scheduler.costs.PUBLISHED`."""
    replicas: int = 1
    """Copies on one worker; they share its requests evenly and are taken as one batch."""
    kv_tokens: int = 1_000_000
    """Of one copy."""
    prefill_us: float = 190.0
    """Microseconds a token, on one copy."""

    def shape(self, accelerators: int) -> Shape:
        if self.model not in PUBLISHED:
            raise ValueError(f"model is {self.model!r}, known are {sorted(PUBLISHED)}")
        cost, copies = PUBLISHED[self.model], self.replicas
        return Shape(
            tp=accelerators,
            decode=DecodeCost(b=cost.b, b0=cost.b0, c=cost.c / copies, a=cost.a / copies, d=cost.d),
            prefill=PrefillCost(per_token=self.prefill_us * 1e-6 / copies),
            kv_tokens=self.kv_tokens * copies,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticSettings:
    """The section `elastic` of a simulation file."""

    workers: int
    accelerators: int = 1
    """Of each worker."""
    rollout: ModelSettings
    genrm: ModelSettings | None = None
    judge: JudgeModel = field(default_factory=JudgeModel)
    train_token_us: float
    """Microseconds a token takes on one worker."""
    train_fixed_s: float = 5.0
    training_sizes: tuple[int, ...] = ()
    times: StageTimes = field(default_factory=StageTimes)
    tick_s: float = 1.0
    planner: PlannerCost = field(default_factory=PlannerCost)
    reserved: int = 0
    """Workers that the fault model never takes, and, where there are such, the only ones that may
    train; those that train at the start come first."""

    def training(self) -> TrainCost:
        return TrainCost(per_token=self.train_token_us * 1e-6, fixed_s=self.train_fixed_s)

    def shapes(self) -> dict[Role, Shape]:
        shapes = {Role.ROLLOUT: self.rollout.shape(self.accelerators)}
        if self.genrm is not None:
            shapes[Role.GENRM] = self.genrm.shape(self.accelerators)
        return shapes

    def splits(self) -> dict[str, Layout]:
        """Every static layout with a worker for each role."""
        judges = range(1, self.workers) if self.genrm is not None else (0,)
        sizes = self.training_sizes or tuple(range(1, self.workers))
        return {
            layout_name(layout): layout
            for training in sizes
            for genrm in judges
            if (rollout := self.workers - training - genrm) > 0
            for layout in ({Role.ROLLOUT: rollout, Role.GENRM: genrm, Role.TRAINING: training},)
        }


def layout_name(layout: Layout) -> str:
    return " ".join(f"{layout.get(role, 0)} {role}" for role in Role if layout.get(role, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRun:
    """One policy on one layout."""

    settings: ElasticSettings
    num_steps: int
    groups_per_step: int
    max_staleness: int
    pull_seconds: float
    max_running: int
    faults: FaultModel

    def play(
        self,
        *,
        workload: Workload,
        admission: Any,
        policy: str,
        options: Mapping[str, Any],
        layout: Layout,
        seed: int,
        listen: Callable[[Event, tuple[Decision, ...]], None] | None = None,
    ) -> ClusterResult:
        settings = self.settings
        shapes = settings.shapes()
        world = self._world(shapes)
        wired = wire_shifts(policy, options, world, dict(layout))
        judge = None
        if settings.genrm is not None:
            judge = lambda plan: settings.judge.request(plan, seed)  # noqa: E731
        return Cluster(
            workers=self._workers(shapes, layout),
            steps=StepSpec(
                num_steps=self.num_steps,
                groups_per_step=self.groups_per_step,
                pull_seconds=self.pull_seconds,
                training=settings.training(),
            ),
            workload=workload,
            scheduler=Scheduler(
                routing=LeastLoad(sticky_gap=0.3),
                admission=admission,
                observers=wired.observers,
                genrm_observers=wired.genrm_observers,
                shifting=wired.policy,
                learners=wired.learners,
                calibration=world.calibration,
                training_sizes=settings.training_sizes,
            ),
            faults=Faults(self.faults, np.random.default_rng((seed, 7))),
            listen=listen,
            elasticity=Elasticity(
                shapes={
                    (role, str(role), settings.accelerators): shape
                    for role, shape in shapes.items()
                },
                max_running=self.max_running,
                times=settings.times,
                tick_s=settings.tick_s,
                planner=settings.planner,
            ),
            judge=judge,
            rng=np.random.default_rng((seed, 8)),
        ).run(limit_s=_LIMIT_S)

    def _world(self, shapes: dict[Role, Shape]) -> ShiftWorld:
        settings = self.settings
        shift_s = {
            (source, target): settings.times.total_s(source, target)
            for source in Role
            for target in Role
        }
        return ShiftWorld(
            shapes=shapes,
            buckets={role: str(role) for role in Role},
            max_running=self.max_running,
            groups_per_step=self.groups_per_step,
            max_staleness=self.max_staleness,
            training=settings.training(),
            training_sizes=settings.training_sizes,
            may_train=frozenset(f"w{i}" for i in range(settings.reserved)),
            shift_s=shift_s,
            calibration=Calibration(
                KnownCosts(
                    shapes={(role, str(role)): shape for role, shape in shapes.items()},
                    training=settings.training(),
                    shift_s=shift_s,
                )
            ),
        )

    def _workers(self, shapes: dict[Role, Shape], layout: Layout) -> list[WorkerSpec]:
        roles = [role for role in reversed(Role) for _ in range(layout.get(role, 0))]
        width = self.settings.accelerators
        return [
            WorkerSpec(
                worker_id=f"w{i}",
                bucket=str(role),
                shape=shapes.get(role, shapes[Role.ROLLOUT]),
                max_running=self.max_running,
                role=role,
                accelerators=tuple(f"gpu{i * width + j}" for j in range(width)),
                is_preemptible=i >= self.settings.reserved,
            )
            for i, role in enumerate(roles)
        ]
