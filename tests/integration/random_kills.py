"""Ends random processes of a run, again and again, and looks for what that left behind.

    python random_kills.py RUN.yaml FOLDER [--every 20 40] [--seed 0] [--against SUMMARY.json]

Workers in whatever role, runners and the coordinator are killed (SIGKILL); workers are sometimes told
to leave (SIGTERM). Prints what was done and what was found; ends with 1 when something was.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from training import Training, shared_memory_of

from agentrl.record.reader import RunReader

VICTIMS = ("Worker", "Worker", "Runner", "Coordinator")
"""A worker as often as all others together."""
SHARE_TOLD = 0.3
"""Of the workers that are ended, those that get a notice."""
SETTLE_S = 10.0
"""For what has ended to be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    t: float
    actor: str
    signal: str
    step: int


class Killer:
    """Ends processes of one run until it is over."""

    def __init__(
        self,
        training: Training,
        rng: random.Random,
        every_s: tuple[float, float],
        max_kills: int = 1_000_000,
    ) -> None:
        self._training = training
        self._rng = rng
        self._every_s = every_s
        self._max_kills = max_kills
        self._seen: dict[int, psutil.Process] = {}
        self.kills: list[Kill] = []

    def run(self, timeout_s: float) -> None:
        """Until the run ends; it is killed, and fails, when it takes longer than this."""
        began = time.monotonic()
        next_kill = began
        while self._training.process.poll() is None:
            now = time.monotonic()
            if now - began > timeout_s:
                self._training.kill()
                raise AssertionError(f"the run did not end in {timeout_s:.0f} s")
            self._look()
            if not self._training.steps_done():
                next_kill = now + self._rng.uniform(*self._every_s)  # it has to begin first
            elif now >= next_kill and len(self.kills) < self._max_kills:
                self._kill(now - began)
                next_kill = now + self._rng.uniform(*self._every_s)
            time.sleep(0.2)

    def left_behind(self) -> list[str]:
        deadline = time.monotonic() + SETTLE_S
        while (left := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.2)
        segments = shared_memory_of(self._seen)
        return [*(f"process {title}" for title in left), *(f"segment {name}" for name in segments)]

    def _look(self) -> None:
        try:
            for process in self._training.descendants():
                self._seen.setdefault(process.pid, process)
        except psutil.NoSuchProcess:
            pass

    def _kill(self, t: float) -> None:
        actor = self._rng.choice(VICTIMS)
        is_told = actor == "Worker" and self._rng.random() < SHARE_TOLD
        number = signal.SIGTERM if is_told else signal.SIGKILL
        victims = self._training.actors(actor)
        if not victims:
            return
        try:
            self._rng.choice(victims).send_signal(number)
        except psutil.NoSuchProcess:
            return
        step = self._training.steps_done()
        self.kills.append(Kill(t=round(t, 1), actor=actor, signal=number.name, step=step))
        with (self._training.folder / "kills.jsonl").open("a") as file:
            file.write(json.dumps(asdict(self.kills[-1])) + "\n")

    def _alive(self) -> list[str]:
        alive = []
        for process in self._seen.values():
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(" ".join(process.cmdline()) or process.name())
            except psutil.NoSuchProcess:
                continue
        return alive


def findings(training: Training, *, groups_per_step: int, steps: int) -> list[str]:
    """What a run's record has that no run should have."""
    found = []
    if not (training.run / "summary.json").exists():
        return ["the run has no summary"]
    if training.summary["steps"] != steps:
        found.append(f"{training.summary['steps']} steps instead of {steps}")
    reader = RunReader(training.run)
    trained: Counter[str] = Counter()
    for step in reader.steps("train"):
        groups = reader.groups(step, "train")
        trained.update(groups.keys())
        if len(groups) != groups_per_step:
            found.append(f"step {step} has {len(groups)} groups instead of {groups_per_step}")
    if missing := set(range(1, steps + 1)) - set(reader.steps("train")):
        found.append(f"steps {sorted(missing)} are not in the record")
    if doubled := [name for name, count in trained.items() if count > 1]:
        found.append(f"groups trained twice: {doubled}")
    found += [line for line in _log(training) if "Traceback" in line][:3]
    return found


def replayed(training: Training) -> tuple[bool, str]:
    """Whether `agentrl replay` says that all was decided as recorded, and what it says."""
    agentrl = Path(sys.executable).with_name("agentrl")
    done = subprocess.run(
        [agentrl, "replay", training.run], capture_output=True, text=True, timeout=1200, check=False
    )
    return done.returncode == 0, done.stdout + done.stderr


def launches(training: Training) -> int:
    """How often the run was wired; more than once where only a checkpoint had what was lost."""
    again = (line for line in _log(training) if "going on from the newest checkpoint" in line)
    return 1 + sum(1 for _ in again)


def _log(training: Training) -> list[str]:
    path = training.run / "log.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=float, nargs=2, default=(20.0, 40.0))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=7200.0)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args(arguments)
    config: dict[str, Any] = yaml.safe_load(given.config.read_text())
    config["name"] = "small"
    training = Training(given.folder, config)
    killer = Killer(training, random.Random(given.seed), tuple(given.every))
    killer.run(given.timeout)
    found = [f"exit code {training.process.poll()}"] if training.process.poll() else []
    found += findings(
        training,
        groups_per_step=config["train"]["groups_per_step"],
        steps=config["train"]["steps"],
    )
    found += killer.left_behind()
    is_identical, said = replayed(training)
    if not is_identical:
        found.append(f"the replay differs: {said[:2000]}")
    kinds = Counter(f"{kill.actor} {kill.signal}" for kill in killer.kills)
    report = {"kills": dict(kinds), "launches": launches(training), "found": found}
    for name, path in (("killed", training.run / "summary.json"), ("calm", given.against)):
        if path and path.exists():
            summary = json.loads(path.read_text())
            report[name] = {
                key: summary[key]
                for key in (
                    "eval_reward_before",
                    "eval_reward",
                    "trajectories",
                    "outcomes",
                    "wall_s",
                )
            }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
