"""How well the estimators forecast, on simulated agents: one run, everybody asked at every turn.

    python tests/bench/forecasts.py [--seeds 5] [LOAD ...]

Forecasts are made before anything of a turn is known and scored at the attempt's end. Log loss in
nats over doubling bins; error in doublings between median and truth; recall of the longest tenth.
The last line is one JSON object: by load and estimator, mean log loss.
"""

from __future__ import annotations

import argparse
import json
from statistics import fmean

import numpy as np

from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.costs import libra_shapes
from scheduler.estimators.accuracy import Accuracy, ForecastCheck, accuracy_of
from scheduler.estimators.choose import NAMES, make_estimator
from scheduler.routing.least_load import LeastLoad
from scheduler.sim.cluster import Cluster, StepSpec, WorkerSpec
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.workload import PRESETS, AgentWorkload

LOADS: dict[str, tuple[str, int, int, float]] = {
    "swe short": ("swe", 2, 12, 1.0),
    "swe long": ("swe", 8, 24, 1.0),
    "search short": ("search", 2, 12, 1.0),
    "search long": ("search", 8, 24, 1.0),
    "search drift": ("search", 6, 12, 4.6),
    "math long": ("math", 8, 24, 1.0),
    "no signal": ("tail_without_signal", 4, 12, 1.0),
}
"""Preset, steps, groups a step, growth of lengths over the run."""


def play(load: str, seed: int) -> dict[str, Accuracy]:
    preset, num_steps, groups, drift = LOADS[load]
    checks = {name: ForecastCheck(make_estimator(name)) for name in NAMES}
    shape = libra_shapes(memory_share=0.85)[2]
    Cluster(
        workers=[
            WorkerSpec(worker_id=f"w{i}", bucket="tp2", shape=shape, max_running=32)
            for i in range(4)
        ],
        steps=StepSpec(num_steps=num_steps, groups_per_step=groups, train_seconds=10.0),
        workload=AgentWorkload(
            model=PRESETS[preset],
            seed=seed,
            group_size=8,
            drift=drift,
            drift_groups=num_steps * groups,
        ),
        scheduler=Scheduler(
            routing=LeastLoad(waits_for_home=True),
            admission=CapacityAdmission(
                groups_per_step=groups, num_steps=num_steps, max_running_groups=1000
            ),
            observers=tuple(checks.values()),
        ),
        faults=Faults(FaultModel(), np.random.default_rng(seed)),
    ).run()
    return {name: accuracy_of(check.scored) for name, check in checks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    losses: dict[str, dict[str, float]] = {}
    for load in arguments.loads or LOADS:
        runs = [play(load, seed) for seed in range(arguments.seeds)]
        losses[load] = {}
        for name in NAMES:
            scores = [run[name] for run in runs]
            losses[load][name] = round(fmean(score.log_loss for score in scores), 3)
            recall = fmean(score.tail_recall or 0.0 for score in scores)
            print(
                f"{load:14s} {name:22s} log loss {losses[load][name]:.3f}  doublings "
                f"{fmean(score.log2_error for score in scores):.2f}  recall {recall:.2f}",
                flush=True,
            )
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
