"""What a plan of our shift policy takes: microseconds a plan, a candidate and an open attempt.

    python tests/bench/planner.py [--steps 1]

Takes the processor time of every question to `pay_back` in the simulation of configs/sim/pivotrl_32.yaml and fits the three
by least squares; simulations charge them (`PlannerCost` in scheduler/sim/specs.py). The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import yaml

from scheduler.events import Role
from scheduler.policies import ShiftPlan
from scheduler.shifting.pay_back import PayBack
from scheduler.sim.run import Choice, simulate, workload_of
from scheduler.sim.settings import read_settings
from scheduler.views import ShiftView

CONFIG = Path(__file__).parents[2] / "configs/sim/pivotrl_32.yaml"


def measure(num_steps: int) -> list[tuple[int, int, float]]:
    """Candidates, open attempts and seconds of each plan."""
    asked: list[tuple[int, int, float]] = []
    plan = PayBack.plan

    def timed(self: PayBack, view: ShiftView) -> ShiftPlan | None:
        weighed, began_s = self.num_weighed, time.process_time()
        made = plan(self, view)
        elapsed_s = time.process_time() - began_s
        attempts = sum(view.demand("main", role).total for role in (Role.ROLLOUT, Role.GENRM))
        asked.append((self.num_weighed - weighed, attempts, elapsed_s))
        return made

    PayBack.plan = timed  # type: ignore[method-assign]  # only here, to look at the clock
    data = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    data["steps"]["num_steps"] = num_steps
    settings = read_settings(data)
    choice = Choice(fleet="all rollout", variant={})
    simulate(settings, workload_of(settings), "pay_back", choice, 0)
    return asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1)
    asked = measure(parser.parse_args().steps)
    seconds = np.array([each[2] for each in asked])
    kept = seconds <= np.quantile(seconds, 0.9)  # the rest met the garbage collector
    columns = np.array([[1.0, candidates, attempts] for candidates, attempts, _ in asked])
    fitted = np.clip(np.linalg.lstsq(columns[kept], seconds[kept], rcond=None)[0], 0.0, None)
    names = ("per_plan_us", "per_candidate_us", "per_attempt_us")
    figures = {name: round(1e6 * value, 2) for name, value in zip(names, fitted, strict=True)}
    figures["plans"] = len(asked)
    figures["mean_ms"] = round(1e3 * float(seconds.mean()), 3)
    figures["p99_ms"] = round(1e3 * float(np.quantile(seconds, 0.99)), 3)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
