"""Elastic workers against the static split and the colocated layout, for real, on pinned cores.

    python tests/bench/elastic.py [--rounds 2] [--steps 10]

Every side runs `agentrl train configs/elastic_cpu.yaml` with the same seed, tasks and number of
steps, and differs in `runtime.layout` alone; sides take turns round by round. Two workers are pinned
to a core each, so the split of one that samples and one that trains is the only static one there is
for two roles. Seconds are those of the steps after the first, from the run's own metrics: warm-up,
evaluation and the start of processes are no part of them.

The last line is one JSON object: `vs_best_static` and `vs_colocated` are seconds of theirs divided by
seconds of ours (medians over the rounds), `lost` and `duplicated` count groups of ours that are
missing or trained on twice, `stalled_steps` those whose batch waited longer for its workers than
training it took, `shifts` completed handoffs, `eval_reward` the reward at the end by side.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "elastic_cpu.yaml"
SIDES = ("elastic", "disaggregated", "colocated")


def run(folder: Path, layout: str, steps: int) -> Path:
    """Train in `folder`; returns the run."""
    folder.mkdir(parents=True)
    command = [
        str(Path(sys.executable).with_name("agentrl")),
        "train",
        str(CONFIG),
        *("--set", f"runtime.layout={layout}", "--set", f"train.steps={steps}"),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{layout}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return folder / "runs" / "elastic"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def step_seconds(run: Path) -> float:
    steps = [line for line in lines(run / "metrics.jsonl") if "train_s" in line]
    return sum(line["seconds"] for line in steps[1:])


def shifts(run: Path) -> int:
    entries = lines(run / "events.jsonl")
    ended = [d for entry in entries for d in entry["decisions"] if d["type"] == "HandoffEnded"]
    return sum(decision["outcome"] == "completed" for decision in ended)


def stalled_steps(run: Path) -> int:
    """Steps whose batch waited longer for training workers than it was trained on."""
    waits: dict[int, float] = {}
    trained: dict[int, float] = {}
    for entry in lines(run / "events.jsonl"):
        event = entry["event"]
        match event["type"]:
            case "BatchReady":
                waits[event["step"]] = -event["t"]
            case "StepStarted":
                waits[event["step"]] += event["t"]
            case "StepEnded":
                trained[event["step"]] = event["seconds"] - waits[event["step"]]
    return sum(waits[step] > trained[step] for step in trained)


def groups(run: Path) -> Counter[str]:
    """How often each group was trained on."""
    rows = lines(run / "trajectories" / "index.jsonl")
    trained = {(row["step"], row["group_id"]) for row in rows if row["split"] == "train"}
    return Counter(group_id for _, group_id in trained)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    runs: dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for side in SIDES:
                runs[side] = run(Path(folder, f"{side}-{number}"), side, arguments.steps)
                seconds[side].append(step_seconds(runs[side]))
                print(f"{side:14} round {number + 1}: {seconds[side][-1]:6.1f} s", flush=True)
        ours, static = groups(runs["elastic"]), groups(runs["disaggregated"])
        rewards = {
            side: json.loads((runs[side] / "summary.json").read_text())["eval_reward"]
            for side in SIDES
        }
        figures = {
            "vs_best_static": ratio(seconds["disaggregated"], seconds["elastic"]),
            "vs_colocated": ratio(seconds["colocated"], seconds["elastic"]),
            "stalled_steps": stalled_steps(runs["elastic"]),
            "lost": len(static - ours),
            "duplicated": sum(count > 1 for count in ours.values()),
            "shifts": shifts(runs["elastic"]),
            "eval_reward": rewards,
            "seconds": {side: [round(s, 2) for s in values] for side, values in seconds.items()},
        }
    print(json.dumps(figures))


def ratio(theirs: list[float], ours: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(theirs, ours, strict=True)), 2)


if __name__ == "__main__":
    main()
