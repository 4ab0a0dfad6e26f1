"""Where everything of a run lies: the one place that knows the names of its files.

runs/<name>/
  run.json                          what the run is, and each launch of it
  config.yaml                       the resolved configuration, secrets masked
  metrics.jsonl                     one line a step
  events.jsonl                      events and decisions, in order
  log.jsonl                         the structured log
  summary.json                      what the run came to; there when it has ended well
  costs.json                        what work costs here; only where a policy asks
  trajectories/index.jsonl          one short line a trajectory, saying where the rest is
  trajectories/000000.jsonl         a chunk: text, one line a trajectory
  trajectories/000000.safetensors   its token columns, once the chunk is sealed
  trajectories/000000.tokens        its token columns while it is open
  training/step-000012.safetensors  what the trainer saw in a step
  training/replayed.jsonl           one line a group that a step trained on again
  journal/000003-runner-0.000012.jsonl  attempts that are not trained on yet, turn by turn
  checkpoints/step-000050/          written by the trainer
  judge/                            a judge made from scratch, after its warm-up
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path

SCHEMA_VERSION = 1

_STEP_FILE = re.compile(r"step-(\d+)\.safetensors")


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The paths of one run folder."""

    root: Path

    @property
    def run(self) -> Path:
        return self.root / "run.json"

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def costs(self) -> Path:
        """What work costs on the machine of the run; only some policies ask for it."""
        return self.root / "costs.json"

    @property
    def log(self) -> Path:
        return self.root / "log.jsonl"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def lock(self) -> Path:
        """Held by the process that writes the run."""
        return self.root / ".lock"

    @property
    def trajectories(self) -> Path:
        return self.root / "trajectories"

    @property
    def index(self) -> Path:
        return self.trajectories / "index.jsonl"

    def chunk_text(self, chunk: int) -> Path:
        return self.trajectories / f"{chunk:06d}.jsonl"

    def chunk_columns(self, chunk: int) -> Path:
        return self.trajectories / f"{chunk:06d}.safetensors"

    def chunk_open_columns(self, chunk: int) -> Path:
        return self.trajectories / f"{chunk:06d}.tokens"

    def open_chunks(self) -> list[int]:
        """Chunks that are not sealed: the one being written, or what a lost process left."""
        return sorted(int(path.stem) for path in self.trajectories.glob("*.tokens"))

    def next_chunk(self) -> int:
        taken = (int(path.stem) for path in self.trajectories.glob("[0-9]*.jsonl"))
        return max(taken, default=-1) + 1

    @property
    def training(self) -> Path:
        return self.root / "training"

    def training_step(self, step: int) -> Path:
        return self.training / f"step-{step:06d}.safetensors"

    @property
    def replayed(self) -> Path:
        return self.training / "replayed.jsonl"

    def training_steps(self) -> list[int]:
        """Steps whose training columns are there, in numeric order."""
        names = (_STEP_FILE.fullmatch(path.name) for path in self.training.glob("step-*"))
        return sorted(int(name[1]) for name in names if name)

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def judge(self) -> Path:
        return self.root / "judge"


def create_run_folder(parent: Path, name: str) -> Path:
    """Make `parent/name`, or `name-2`, `name-3` ... when taken; nobody else can get the same.

    Raises ValueError where no folder can be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise ValueError(
            f"no run folder can be made in {parent}: {error.strerror}; choose another place with "
            "--runs, or free this one"
        ) from error
    raise AssertionError("count() does not end")


def newest_run_folder(parent: Path, name: str) -> Path:
    """The folder `create_run_folder` made last for this name. Raises ValueError without one."""
    pattern = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    folders = parent.iterdir() if parent.is_dir() else ()
    numbers = {
        int(match[1] or 1): folder
        for folder in folders
        if (match := pattern.fullmatch(folder.name)) and (folder / "run.json").exists()
    }
    if not numbers:
        raise ValueError(f"there is no run {name!r} in {parent} to resume; leave out --resume")
    return numbers[max(numbers)]
