"""Random small clusters from a seed: agents, workers, policy, and everything that can go wrong.

Each is played with the invariant checker listening, so a broken rule ends it with the event that
broke it. Property tests and the bench play many.
"""

from __future__ import annotations

from random import Random

import numpy as np

from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.costs import DecodeCost, PrefillCost, Shape
from scheduler.decisions import Decision
from scheduler.estimators.choose import make_estimator
from scheduler.events import Event
from scheduler.invariants import InvariantChecker
from scheduler.policies import RoutePolicy
from scheduler.replay import LogEntry
from scheduler.routing.buckets import BucketRouter
from scheduler.routing.exploration import Exploration
from scheduler.routing.least_load import LeastLoad
from scheduler.routing.round_robin import RoundRobin
from scheduler.sim.cluster import Cluster
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.specs import ClusterResult, StepSpec, WorkerSpec
from scheduler.sim.workload import PRESETS, AgentWorkload

GROUP_SIZE = 3


def small_shape(tp: int, kv_tokens: int) -> Shape:
    return Shape(
        tp=tp,
        decode=DecodeCost(b=0.01 / tp, b0=0.005 / tp, c=1e-4 * tp, a=1e-7 / tp, d=1e-3),
        prefill=PrefillCost(per_token=1e-4 / tp),
        kv_tokens=kv_tokens,
    )


class RandomRun:
    """A small cluster with everything drawn from one seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng((seed, 1))
        self.seed = seed
        self.staleness = int(rng.integers(0, 3))
        self.groups_per_step = int(rng.integers(1, 4))
        self.steps = StepSpec(
            num_steps=3,
            groups_per_step=self.groups_per_step,
            train_seconds=float(rng.uniform(0, 20)),
            pull_seconds=float(rng.uniform(0, 3)),
        )
        self.workers = [
            WorkerSpec(
                worker_id=f"w{i}",
                bucket=f"b{i % 2}",
                shape=small_shape(1 + i % 2, int(rng.integers(42_000, 90_000))),
                max_running=int(rng.integers(1, 5)),
            )
            for i in range(int(rng.integers(1, 5)))
        ]
        self.faults = FaultModel(
            worker_mean_life_s=float(rng.choice([60.0, 300.0])),
            worker_down_s=10.0,
            detection_s=float(rng.choice([0.0, 8.0])),
            box_failure=0.03,
            late_message=0.3,
            dispatch_s=float(rng.choice([0.0, 0.5])),
        )
        self.preset = str(rng.choice(["search", "math", "swe", "equal"]))
        self.policy = str(rng.choice(["least load", "loyal", "round robin", "buckets"]))
        self.log: list[LogEntry] = []

    def scheduler(self) -> Scheduler:
        buckets = BucketRouter(
            make_estimator(), {"b0": small_shape(1, 60_000), "b1": small_shape(2, 60_000)}
        )
        policies: dict[str, RoutePolicy] = {
            "least load": LeastLoad(sticky_gap=0.3),
            "loyal": LeastLoad(waits_for_home=True),
            "round robin": RoundRobin(),
            "buckets": buckets,
        }
        routing = policies[self.policy]
        return Scheduler(
            routing=routing,
            observers=(buckets,) if routing is buckets else (),
            exploration=Exploration(0.1, Random(self.seed)) if self.seed % 3 == 0 else None,
            prewarming=buckets if routing is buckets and self.seed % 2 else None,
            admission=CapacityAdmission(
                groups_per_step=self.groups_per_step,
                num_steps=self.steps.num_steps,
                max_staleness=self.staleness,
                max_running_groups=4,
            ),
        )

    def play(self) -> tuple[ClusterResult, InvariantChecker, Scheduler]:
        checker = InvariantChecker(
            groups_per_step=self.groups_per_step, max_staleness=self.staleness
        )
        scheduler = self.scheduler()

        def listen(event: Event, decisions: tuple[Decision, ...]) -> None:
            self.log.append(LogEntry(event=event, decisions=decisions))
            checker.check(event, decisions)

        cluster = Cluster(
            workers=self.workers,
            steps=self.steps,
            workload=AgentWorkload(
                model=PRESETS[self.preset], seed=self.seed, group_size=GROUP_SIZE
            ),
            scheduler=scheduler,
            faults=Faults(self.faults, np.random.default_rng((self.seed, 2))),
            listen=listen,
        )
        return cluster.run(), checker, scheduler
