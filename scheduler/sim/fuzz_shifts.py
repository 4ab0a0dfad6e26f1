"""Random small clusters whose workers change roles, with everything that can go wrong on the way.

Like `scheduler.sim.fuzz`, with judgements, optimizer steps on the fleet, a shift policy (ours, a rival, or one
that moves at random), notices, sudden losses, workers that a placement does not reach, and stages
that fail or are never reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.costs import Shape, TrainCost
from scheduler.decisions import Decision
from scheduler.estimators.choose import make_estimator
from scheduler.events import Event, Role
from scheduler.invariants import InvariantChecker
from scheduler.policies import RoutePolicy, ShiftPlan
from scheduler.replay import LogEntry
from scheduler.routing.buckets import BucketRouter
from scheduler.routing.least_load import LeastLoad
from scheduler.shifting.selection import ShiftWorld
from scheduler.shifting.wiring import WiredShifts, wire_shifts
from scheduler.sim.cluster import Cluster
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.fuzz import GROUP_SIZE, small_shape
from scheduler.sim.judging import JudgeModel
from scheduler.sim.requests import DecodeWorker
from scheduler.sim.specs import (
    ClusterResult,
    Elasticity,
    PlannerCost,
    StageTimes,
    StepSpec,
    WorkerSpec,
)
from scheduler.sim.worker import SkippingWorker
from scheduler.sim.workload import PRESETS, AgentWorkload
from scheduler.views import ShiftView, TrajectoryView, WorkerView

POLICIES = (
    "random",
    "pay_back",
    "pay_back",
    "colocated_phases",
    "kv_rule",
    "itl_planner",
    "seeding_controller",
)


@dataclass(slots=True)
class RandomShifts:
    """Moves and cancels drawn from a counter: any plan at all, so that the scheduler must refuse."""

    num_weighed = 0

    world: ShiftWorld
    seed: int
    asked: int = 0

    def plan(self, view: ShiftView) -> ShiftPlan | None:
        self.asked += 1
        rng = np.random.default_rng((self.seed, self.asked))
        if rng.random() > 0.15:
            return None
        names = [shift.worker_id for shift in view.open_shifts]
        cancels = tuple(name for name in names if rng.random() < 0.2)
        roles = list(Role)
        moves = {
            member.worker.worker_id: self.world.duty(member, roles[int(rng.integers(3))])
            for member in view.members
            if rng.random() < 0.4
        }
        return ShiftPlan(moves=moves, cancels=cancels)

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        return (len(trajectory.trajectory_id) + trajectory.turn) % 2 == 0


class RandomShiftingRun:
    """A small cluster of workers that shift, with everything drawn from one seed."""

    def __init__(self, seed: int, *, has_faults: bool = True) -> None:
        rng = np.random.default_rng((seed, 3))
        self.seed = seed
        self.staleness = int(rng.integers(0, 3))
        self.groups_per_step = int(rng.integers(1, 4))
        self.sizes = [(), (1, 2, 4)][int(rng.integers(2))]
        self.steps = StepSpec(
            num_steps=3,
            groups_per_step=self.groups_per_step,
            pull_seconds=float(rng.uniform(0, 3)),
            training=TrainCost(per_token=float(rng.uniform(1e-4, 2e-3)), fixed_s=1.0),
        )
        self.shape = small_shape(1, int(rng.integers(42_000, 90_000)))
        self.max_running = int(rng.integers(1, 6))
        self.roles = [Role.ROLLOUT, Role.GENRM, Role.TRAINING]
        self.roles += [list(Role)[int(rng.integers(3))] for _ in range(int(rng.integers(0, 4)))]
        self.faults = FaultModel()
        if has_faults:
            self.faults = FaultModel(
                worker_mean_life_s=float(rng.choice([120.0, 600.0])),
                worker_down_s=10.0,
                detection_s=float(rng.choice([0.0, 8.0])),
                notice_s=float(rng.choice([0.0, 15.0])),
                noticed=0.5,
                stage_failure=float(rng.choice([0.0, 0.05])),
                stage_hang=float(rng.choice([0.0, 0.03])),
                box_failure=0.02,
                late_message=0.2,
                dispatch_s=float(rng.choice([0.0, 0.5])),
                unreached=0.02,
            )
        self.preset = str(rng.choice(["search", "math", "equal"]))
        self.policy = str(rng.choice(POLICIES))
        self.routes_by_bucket = bool(rng.random() < 0.5)
        self.planner = PlannerCost(per_plan_us=float(rng.choice([0.0, 1e5, 3e6])))
        self.log: list[LogEntry] = []

    def _world(self) -> ShiftWorld:
        times = StageTimes()
        return ShiftWorld(
            shapes={Role.ROLLOUT: self.shape, Role.GENRM: self.shape},
            buckets={role: str(role) for role in Role},
            max_running=self.max_running,
            groups_per_step=self.groups_per_step,
            max_staleness=self.staleness,
            training=self.steps.training or TrainCost(per_token=0.0),
            training_sizes=self.sizes,
            shift_s={(a, b): times.total_s(a, b) for a in Role for b in Role},
        )

    def _shifts(self) -> WiredShifts:
        layout = {role: self.roles.count(role) for role in Role}
        if self.policy == "random":
            return WiredShifts(policy=RandomShifts(self._world(), self.seed))
        return wire_shifts(self.policy, {}, self._world(), layout)

    def scheduler(self) -> Scheduler:
        wired = self._shifts()
        routing: RoutePolicy = LeastLoad(sticky_gap=0.3)
        observers = wired.observers
        if self.routes_by_bucket:
            router = BucketRouter(make_estimator("pooled"), {"rollout": self.shape})
            routing, observers = router, (router, *observers)
        return Scheduler(
            routing=routing,
            admission=CapacityAdmission(
                groups_per_step=self.groups_per_step,
                num_steps=self.steps.num_steps,
                max_staleness=self.staleness,
                max_running_groups=4,
            ),
            observers=observers,
            genrm_observers=wired.genrm_observers,
            shifting=wired.policy,
            learners=wired.learners,
            training_sizes=self.sizes,
        )

    def play(
        self, make_worker: Callable[[Shape], DecodeWorker] = SkippingWorker
    ) -> tuple[ClusterResult, InvariantChecker, Scheduler]:
        checker = InvariantChecker(
            groups_per_step=self.groups_per_step, max_staleness=self.staleness
        )
        scheduler = self.scheduler()
        judge = JudgeModel(tokens=200.0, rubric_tokens=100)

        def listen(event: Event, decisions: tuple[Decision, ...]) -> None:
            self.log.append(LogEntry(event=event, decisions=decisions))
            checker.check(event, decisions)

        cluster = Cluster(
            workers=[
                WorkerSpec(
                    worker_id=f"w{i}",
                    bucket=str(role),
                    shape=self.shape,
                    max_running=self.max_running,
                    role=role,
                )
                for i, role in enumerate(self.roles)
            ],
            steps=self.steps,
            workload=AgentWorkload(
                model=PRESETS[self.preset], seed=self.seed, group_size=GROUP_SIZE
            ),
            scheduler=scheduler,
            faults=Faults(self.faults, np.random.default_rng((self.seed, 2))),
            make_worker=make_worker,
            listen=listen,
            elasticity=Elasticity(
                shapes={(role, str(role), 1): self.shape for role in Role},
                max_running=self.max_running,
                tick_s=2.0,
                planner=self.planner,
            ),
            judge=lambda plan: judge.request(plan, self.seed),
            rng=np.random.default_rng((self.seed, 4)),
        )
        return cluster.run(limit_s=200_000.0), checker, scheduler
