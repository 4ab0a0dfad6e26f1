"""Where the CPU time of a rollout goes, by kind of process, in a run like the quickstart.

    python tests/bench/rollout_cpu.py [--steps 3] [--model CHECKPOINT] [--set key=value ...]

Runs `agentrl train configs/quickstart.yaml` and reads the CPU time of all its processes after the
first step and after the last: what lies between, divided by the attempts that ended meanwhile, is
what a rollout costs. With `--model` the run starts from that checkpoint and without warm-up. CPU time
hardly depends on what else the machine does, unlike wall clock.

Boxes count with the processes that made them. The last line is one JSON object: milliseconds of CPU
time an attempt, by kind of process and in all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).parents[2]


def main() -> None:
    arguments = parse_arguments()
    config = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    if arguments.model:
        config["model"] = {"from": "path", "path": str(Path(arguments.model).resolve())}
        config["warmup"] = {"steps": 0}
    config["train"]["steps"] = arguments.steps
    config["eval"] = {"every_steps": 0, "tasks": 8}
    config["checkpoint"] = {"every_steps": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.yaml")
        path.write_text(yaml.safe_dump(config))
        overrides = [part for given in arguments.overrides for part in ("--set", given)]
        agentrl = Path(sys.executable).with_name("agentrl")
        run = subprocess.Popen([str(agentrl), "train", str(path), *overrides], cwd=folder)
        try:
            figures = measure(run, Path(folder, "runs", config["name"], "metrics.jsonl"), arguments)
        finally:
            run.terminate()
            run.wait()
    print(json.dumps(figures))


def measure(run: subprocess.Popen[bytes], metrics: Path, arguments: Any) -> dict[str, float]:
    steps, spent = {}, {}
    while len(steps) < arguments.steps:
        if run.poll() is not None:
            raise SystemExit(f"the run ended with {run.returncode} after {len(steps)} steps")
        time.sleep(0.02)
        lines = (
            [json.loads(line) for line in metrics.read_text().splitlines()]
            if metrics.exists()
            else []
        )
        steps = {line["step"]: line for line in lines if "train_s" in line}
        for step in {1, arguments.steps} & steps.keys() - spent.keys():
            spent[step] = cpu_seconds(psutil.Process(run.pid))
    attempts = sum(line["trajectories"] for step, line in steps.items() if step > 1)
    first, last = spent[1], spent[arguments.steps]
    figures = {kind: 1000 * (last[kind] - first[kind]) / attempts for kind in sorted(last)}
    return {**figures, "all": sum(figures.values()), "attempts": attempts}


def cpu_seconds(root: psutil.Process) -> defaultdict[str, float]:
    """By kind of process, those included that it waited for."""
    spent: defaultdict[str, float] = defaultdict(float)
    for process in [root, *root.children(recursive=True)]:
        try:
            times, kind = process.cpu_times(), kind_of(process, root)
        except psutil.NoSuchProcess:
            continue
        spent[kind] += times.user + times.system
        ended = "boxes" if kind == "runner" else kind
        spent[ended] += times.children_user + times.children_system
    return spent


def kind_of(process: psutil.Process, root: psutil.Process) -> str:
    if process == root:
        return "driver"
    title = process.cmdline()[0] if process.cmdline() else process.name()
    if title.startswith("ray::"):
        return title.removeprefix("ray::").partition(".")[0].lower()
    above = [parent.cmdline()[:1] for parent in process.parents()]
    return "boxes" if any(line and line[0].startswith("ray::Runner") for line in above) else "ray"


def parse_arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--model", help="a checkpoint of a quickstart run")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    return parser.parse_args()


if __name__ == "__main__":
    main()
