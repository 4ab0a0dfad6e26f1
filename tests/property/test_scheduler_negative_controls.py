"""What tools tell is worth something, and nothing any more once their results are shuffled."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.costs import libra_shapes
from scheduler.estimators.accuracy import ForecastCheck, accuracy_of
from scheduler.estimators.choose import make_estimator
from scheduler.routing.least_load import LeastLoad
from scheduler.sim.cluster import Cluster, StepSpec, WorkerSpec
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.workload import PRESETS, AgentWorkload


def gain_of_tools(seed: int, *, shuffles_tools: bool) -> float:
    """Log loss of a tree over tokens alone, less that of one over tool results too."""
    checks = {name: ForecastCheck(make_estimator(name)) for name in ("elapsed", "history")}
    shape = libra_shapes(memory_share=0.85)[2]
    Cluster(
        workers=[WorkerSpec(worker_id="w", bucket="tp2", shape=shape, max_running=64)],
        steps=StepSpec(num_steps=4, groups_per_step=24),
        workload=AgentWorkload(
            model=PRESETS["swe"], seed=seed, group_size=8, shuffles_tools=shuffles_tools
        ),
        scheduler=Scheduler(
            routing=LeastLoad(),
            admission=CapacityAdmission(groups_per_step=24, num_steps=4, max_running_groups=100),
            observers=tuple(checks.values()),
        ),
        faults=Faults(FaultModel(), np.random.default_rng(seed)),
    ).run()
    losses = {name: accuracy_of(check.scored).log_loss for name, check in checks.items()}
    return losses["elapsed"] - losses["history"]


def test_the_gain_from_tool_results_vanishes_when_they_are_shuffled() -> None:
    with_signal = fmean(gain_of_tools(seed, shuffles_tools=False) for seed in range(3))
    shuffled = fmean(gain_of_tools(seed, shuffles_tools=True) for seed in range(3))
    assert with_signal > 0.015
    assert shuffled < with_signal / 5
