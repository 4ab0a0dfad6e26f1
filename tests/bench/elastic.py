"""Elastic workers against every static split and the colocated layout, for real, on two cores.

    python tests/bench/elastic.py [--rounds 3] [--steps 8] [--models FOLDER]

Every side runs `agentrl train configs/elastic_cpu.yaml` with the same weights, seeds, tasks and
number of steps, and differs in who computes where:

- **elastic**: two workers, a core each; they sample, judge and train as the scheduler finds.
- **colocated**: the same two workers, all in one role at a time.
- **static**: a worker for each role, for the whole run. Three roles on two cores means that two of
  them share one, so a static worker is given what an accelerator does not offer: it holds its
  memory beside another and runs whenever that one rests; the one that samples has slots for all
  attempts. All ways are tried first, the three that pin the roles and the one that lets the system
  place them; the fastest takes part in every round.

The models are taught once, before the sides begin, or by an earlier bench with the same `--models`.
Sides take turns round by round. Seconds are those of the steps after the first, from the run's own
metrics: warm-up, evaluation and the start of processes are no part of them.

The last line is one JSON object: `vs_best_static` and `vs_colocated` are seconds of theirs divided
by seconds of ours (medians over the rounds), `lost` and `duplicated` count groups of ours that are
missing or trained on twice, `stalled_steps` those whose batch waited longer for its workers than
training it took, `shifts` completed handoffs by the role they led to (those of all rounds),
`eval_reward` the reward at the end by side and round, `reward_gap` the mean reward of our steps less
that of the static side's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elastic_run import Ran

HERE = Path(__file__).parent
CONFIG = HERE.parents[1] / "configs" / "elastic_cpu.yaml"
AGENTRL = (str(Path(sys.executable).with_name("agentrl")),)
SPLIT = (sys.executable, str(HERE / "elastic_split.py"))
STATIC = {
    "rollout | genrm + training": "1,0,1",
    "rollout + genrm | training": "1,0,0",
    "rollout + training | genrm": "0,0,1",
    "anywhere": "-,-,-",
}
"""Cores of training, rollout and genrm."""


@dataclass(frozen=True, slots=True)
class Taught:
    """Models that are ready for reinforcement."""

    policy: Path
    judge: Path

    @property
    def settings(self) -> list[str]:
        models = {"model": self.policy, "judge.model": self.judge}
        paths = [f"{key}={{from: path, path: {path}}}" for key, path in models.items()]
        return [*paths, "warmup.steps=0", "judge.warmup.steps=0"]


def train(
    folder: Path,
    *settings: str,
    program: tuple[str, ...] = AGENTRL,
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Train in `folder`; returns the run."""
    folder.mkdir(parents=True, exist_ok=True)
    given = [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run(
        [*program, "train", str(CONFIG), *given],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{folder.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return folder / "runs" / "elastic"


def teach(folder: Path) -> Taught:
    """What a run does before its first step; that one step is what it takes to end well."""
    run = folder / "runs" / "elastic"
    if not (run / "summary.json").exists():
        train(folder, "train.steps=1", "train.groups_per_step=2", "eval.tasks=1")
    (first, *_) = sorted((run / "checkpoints").glob("step-*"))
    return Taught(first, run / "judge")


class Bench:
    def __init__(self, folder: Path, taught: Taught) -> None:
        self._folder = folder
        self._taught = taught
        self._number = 0

    def side(self, name: str, steps: int) -> Ran:
        """Run one side, and say how long it took."""
        self._number += 1
        folder = self._folder / f"side-{self._number}"
        settings = [*self._taught.settings, f"train.steps={steps}"]
        if name in STATIC:
            own = (
                "runtime.layout=disaggregated",
                "runtime.genrm_workers=1",
                "runtime.pin_cores=false",
                "runtime.slots=192",
            )
            environment = {"SPLIT": STATIC[name]}
            run = Ran(train(folder, *settings, *own, program=SPLIT, environment=environment))
        else:
            run = Ran(train(folder, *settings, f"runtime.layout={name}"))
        seconds = [round(seconds, 1) for seconds in run.step_seconds]
        print(f"{name:28} {sum(seconds):6.1f} s  {seconds}", flush=True)
        return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--sweep-steps", type=int, default=5, help="of each static split at first")
    parser.add_argument("--models", type=Path, help="folder to teach them in, and to find them in")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(folder, teach((arguments.models or folder / "taught").resolve()))
        print("every static split", flush=True)
        swept = {
            split: sum(bench.side(split, arguments.sweep_steps).step_seconds) for split in STATIC
        }
        static = min(swept, key=lambda split: swept[split])
        runs: defaultdict[str, list[Ran]] = defaultdict(list)
        for number in range(arguments.rounds):
            print(f"round {number + 1}", flush=True)
            for side in ("elastic", static, "colocated"):
                runs[side].append(bench.side(side, arguments.steps))
        figures = {
            "vs_best_static": ratio(runs[static], runs["elastic"]),
            "vs_colocated": ratio(runs["colocated"], runs["elastic"]),
            "stalled_steps": sum(run.stalled_steps for run in runs["elastic"]),
            "lost": sum(
                (a.groups - b.groups).total()
                for a, b in zip(runs[static], runs["elastic"], strict=True)
            ),
            "duplicated": sum(n > 1 for run in runs["elastic"] for n in run.groups.values()),
            "shifts": dict(sum((run.shifts for run in runs["elastic"]), Counter())),
            "best_static": static,
            "static_seconds": {split: round(seconds, 1) for split, seconds in swept.items()},
            "seconds": {
                side: [round(sum(run.step_seconds), 1) for run in ran] for side, ran in runs.items()
            },
            "eval_reward": {
                side: [round(run.eval_reward, 3) for run in ran] for side, ran in runs.items()
            },
            "reward_gap": round(mean_reward(runs["elastic"]) - mean_reward(runs[static]), 3),
        }
    print(json.dumps(figures))


def ratio(theirs: list[Ran], ours: list[Ran]) -> float:
    pairs = zip(theirs, ours, strict=True)
    return round(statistics.median(sum(a.step_seconds) / sum(b.step_seconds) for a, b in pairs), 2)


def mean_reward(runs: list[Ran]) -> float:
    return statistics.fmean(reward for run in runs for reward in run.rewards)


if __name__ == "__main__":
    main()
