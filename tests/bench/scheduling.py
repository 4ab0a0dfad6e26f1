"""What the scheduler is worth, in simulation, and what simulating costs.

    python tests/bench/scheduling.py [--seeds 20] [--fault-seeds 1000] [--jobs 2] [CELL ...]

Cells are files of configs/sim (all of them by default). In each, every policy is tuned on seeds of
its own and measured on the same fresh ones: ours against its rivals and against rules that know
the truth. Figures, on the last line as one JSON object:

- `oracle_gain_share`: the least share of the clairvoyant gain over least load that ours reaches, over
  cells where that gain is 10 % or more; null when there is no such cell
- `vs_best_rival`: the least ratio of ours to the best rival, over cells that are no controls
- `worst_control`: the least ratio of ours to least load on the same fleet, over all cells
- `drift_vs_best_fixed`: ours to the best rival under drift, each on the best fixed fleet
- `rebucketing_bound`: what changing the parallelism between steps could bring at most under drift:
  the best fixed fleet against the best fleet of each step, chosen with hindsight and changed for free
- `elastic_vs_best_static`, `elastic_vs_colocated`: our shift policy to the best static split, found by
  trying every one, and to the colocated layout, with staleness 0 and work-bound steps
- `elastic_worst`: the least ratio of our shift policy to the best static split with staleness 1 or more
- `invariants_broken`: random clusters with faults, of `--fault-seeds` without and as many with
  workers that change roles, that broke a rule
- `sim_seconds`: processor time of 10 000 attempts on 48 workers with ours, log lines included
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from scheduler.replay import LogEntry
from scheduler.sim.fuzz import RandomRun
from scheduler.sim.fuzz_shifts import RandomShiftingRun
from scheduler.sim.report import Row, cells_of, rows_of
from scheduler.sim.run import Choice, compare, simulate, workload_of
from scheduler.sim.settings import read_settings

CONFIGS = Path(__file__).parents[2] / "configs/sim"
OURS = "buckets"
NO_CELLS = {"ablation", "ablation_short", "ablation_drift", "over_sampling", "plexrl_jobs"}
"""Files that answer another question."""
ELASTIC_SYNC = "pivotrl_32"
ELASTIC_ASYNC = ("pivotrl_32_async", "nereus_drift")
ELASTIC = {ELASTIC_SYNC, *ELASTIC_ASYNC, "rlboost_spot"}
"""Files about workers that change roles."""
CONTROLS = {"control_equal", "control_no_signal", "negative_controls"}

SPEED: dict[str, Any] = {
    "name": "speed",
    "agents": {"preset": "search", "group_size": 16},
    "steps": {"num_steps": 5, "groups_per_step": 125},
    "max_running": 64,
    "fleets": {"48xTP1": {1: 48}},
    "policies": {"least_load": [{}]},
}


def measure_cell(name: str, seeds: int) -> list[Row]:
    data = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    settings = read_settings({**data, "seeds": seeds})
    return rows_of(compare(settings, workload_of(settings)))


def print_cell(name: str, rows: list[Row]) -> None:
    print(name)
    for row in rows:
        print("  " + "  ".join(cells_of(row)), flush=True)


def summarize(cells: dict[str, list[Row]]) -> dict[str, float | None]:
    shares, rivals, same_fleet = [], [], []
    drift: float | None = None
    for name, rows in cells.items():
        by_name = {row.policy: row.vs_baseline.mean for row in rows}
        ours = next(row for row in rows if row.policy == OURS)
        clairvoyant = max(ratio for policy, ratio in by_name.items() if "clairvoyant" in policy)
        rival = max(
            ratio
            for policy, ratio in by_name.items()
            if policy != OURS and "clairvoyant" not in policy
        )
        same_fleet.append(ours.vs_baseline_same_fleet.mean)
        if name not in CONTROLS:
            rivals.append(ours.vs_baseline.mean / rival)
        if clairvoyant >= 1.10:
            shares.append((ours.vs_baseline.mean - 1) / (clairvoyant - 1))
        if name.endswith("drift"):
            drift = ours.vs_baseline.mean / rival
    return {
        "oracle_gain_share": min(shares, default=None),
        "vs_best_rival": min(rivals, default=None),
        "worst_control": min(same_fleet, default=None),
        "drift_vs_best_fixed": drift,
    }


def rebucketing_bound(seeds: int) -> float:
    """Steps of a synchronous run do not touch each other, so their best times add up."""
    data = yaml.safe_load((CONFIGS / "libra_drift.yaml").read_text(encoding="utf-8"))
    fleets = {f"{8 // tp}xTP{tp}": {tp: 8 // tp} for tp in (1, 2, 4, 8)}
    settings = read_settings({**data, "fleets": fleets})
    fixed, switched = dict.fromkeys(fleets, 0.0), 0.0
    for seed in range(seeds):
        steps = {}
        for fleet in fleets:
            choice = Choice(fleet=fleet, variant={"waits_for_home": True})
            ends = simulate(settings, workload_of(settings), "least_load", choice, seed).step_ends
            steps[fleet] = [end - begin for begin, end in pairwise([0.0, *ends])]
            fixed[fleet] += ends[-1]
        switched += sum(map(min, zip(*steps.values(), strict=True)))
    return min(fixed.values()) / switched


def summarize_elastic(cells: dict[str, list[Row]]) -> dict[str, float | None]:
    ratios = {
        name: {row.policy: row.vs_baseline.mean for row in rows} for name, rows in cells.items()
    }
    sync = ratios.get(ELASTIC_SYNC)
    worst = [ratios[name]["pay_back"] for name in ELASTIC_ASYNC if name in ratios]
    return {
        "elastic_vs_best_static": sync["pay_back"] if sync else None,
        "elastic_vs_colocated": sync["pay_back"] / sync["colocated_phases"] if sync else None,
        "elastic_worst": min(worst, default=None),
    }


def count_broken(seeds: int) -> int:
    broken = 0
    for run in (kind(seed) for kind in (RandomRun, RandomShiftingRun) for seed in range(seeds)):
        try:
            _, checker, scheduler = run.play()
        except AssertionError as error:
            print(f"{type(run).__name__} {run.seed}: {error}")
            broken += 1
            continue
        num_running = sum(worker.num_running for worker in scheduler.members())
        is_clean = not checker.open_trajectories and num_running == 0
        broken += not is_clean
    return broken


def time_simulation() -> float:
    settings = read_settings(SPEED)
    num_bytes = 0

    def journal(event: Any, decisions: Any) -> None:
        nonlocal num_bytes
        num_bytes += len(LogEntry(event=event, decisions=decisions).to_line())

    before = time.process_time()
    choice = Choice(fleet="48xTP1", variant={})
    result = simulate(settings, workload_of(settings), OURS, choice, 0, journal)
    seconds = time.process_time() - before
    print(
        f"simulated {len(result.ended)} attempts, {result.num_events} events, "
        f"{result.num_decisions} decisions, {num_bytes / 1e6:.0f} MB of log in {seconds:.1f} s"
    )
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="*")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2, help="cells side by side")
    parser.add_argument("--fault-seeds", type=int, default=1000)
    arguments = parser.parse_args()
    names = arguments.cells or sorted({path.stem for path in CONFIGS.glob("*.yaml")} - NO_CELLS)
    figures: dict[str, float | None] = {"sim_seconds": time_simulation()}
    figures["invariants_broken"] = count_broken(arguments.fault_seeds)
    figures["rebucketing_bound"] = rebucketing_bound(min(arguments.seeds, 8))
    cells = {}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for name, rows in zip(
            names, pool.map(measure_cell, names, [arguments.seeds] * len(names)), strict=True
        ):
            print_cell(name, rows)
            cells[name] = rows
    figures.update(summarize({n: rows for n, rows in cells.items() if n not in ELASTIC}))
    figures.update(summarize_elastic(cells))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
