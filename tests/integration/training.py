"""Runs `agentrl train` as a user does, on a model and a task that take seconds."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from re import findall
from typing import Any, ClassVar

import psutil
import yaml

from agentrl.record.reader import RunReader

DEADLINE_S = 240
"""Only to catch hangs; a run takes about twenty seconds on two idle cores."""

SMALL: dict[str, Any] = {
    "name": "small",
    "env": {"name": "trail", "options": {"max_hops": 2}},
    "model": {
        "from": "scratch",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_layers": 1,
        "num_heads": 2,
        "head_dim": 16,
    },
    "sandbox": {"backend": "bubblewrap", "pool_size": 4},
    "warmup": {"steps": 3, "batch_tokens": 256, "row_tokens": 64, "warmup_steps": 1},
    "rollout": {
        "group_size": 4,
        "max_turn_tokens": 16,
        "max_trajectory_tokens": 64,
        "context_tokens": 128,
        "trajectory_timeout_s": 60,
        "tool_timeout_s": 20,
    },
    "train": {
        "steps": 3,
        "groups_per_step": 2,
        "max_empty_steps": 1000,
        "advantage": {"type": "grpo", "zero_variance": "keep"},
    },
    "eval": {"every_steps": 0, "tasks": 4},
    "checkpoint": {"every_steps": 1},
    "runtime": {"slots": 8, "stall_timeout_s": 120},
}

PATIENT = {"start_timeout_s": 400, "stall_timeout_s": 400, "silence_timeout_s": 400}
"""For runs of many processes on a machine that is busy with others."""


def judged() -> dict[str, Any]:
    """SMALL in the shop: a policy that was hardly taught, and a judge that knows a verdict's form."""
    small = copy.deepcopy(SMALL)
    small["env"] = {"name": "shop"}
    del small["sandbox"]
    small["warmup"] |= {"steps": 20, "batch_tokens": 1024, "row_tokens": 256}
    small["rollout"] |= {
        "max_turn_tokens": 24,
        "max_trajectory_tokens": 168,
        "context_tokens": 320,
    }
    small["judge"] = {
        "type": "genrm",
        "model": {**SMALL["model"], "hidden_size": 64, "intermediate_size": 192, "num_layers": 2},
        "warmup": {"steps": 100, "batch_tokens": 1792, "row_tokens": 448},
        "brief": True,
        "max_tokens": 64,
        "context_tokens": 512,
        "slots": 16,
        "timeout_s": 50,
    }
    small["runtime"] |= {"pin_cores": False}
    small["outcomes"] = {"max_error_fraction": 1.0}  # so young a judge often says nothing readable
    return small


class Training:
    """A running `agentrl train` in a folder of its own."""

    running: ClassVar[list[Training]] = []

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        *arguments: str,
        program: Sequence[str] = (str(Path(sys.executable).with_name("agentrl")),),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        path = folder / "run.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [*program, "train", str(path), *arguments]
        self.output = folder / f"output-{time.monotonic_ns()}.txt"
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(self)

    def wait(self, *, deadline_s: float = DEADLINE_S) -> int:
        try:
            return self.process.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the run hangs:\n{self.text}") from None

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not what():
            assert self.process.poll() is None, f"the run ended first:\n{self.text}"
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"it never happened:\n{self.text}")
            time.sleep(0.1)

    def signal(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @classmethod
    def kill_all(cls) -> None:
        """What a test that failed has left, so that no other one has it beside it."""
        while cls.running:
            cls.running.pop().kill()

    @property
    def text(self) -> str:
        return self.output.read_text()

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "small"

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.run / "summary.json").read_text())
        return summary

    def metrics(self) -> list[dict[str, Any]]:
        return whole_lines(self.run / "metrics.jsonl")

    def steps_done(self) -> int:
        return max((line["step"] for line in self.metrics() if "train_s" in line), default=0)

    def trained(self) -> dict[int, list[str]]:
        """Step to the ids of the tasks whose groups it was made of."""
        reader = RunReader(self.run)
        return {
            step: sorted(rows[0].task_id for rows in reader.groups(step, "train").values())
            for step in reader.steps("train")
        }

    def actors(self, name: str) -> list[psutil.Process]:
        """Ray's processes that hold an actor of this class, below this run."""
        return [p for p in self.descendants() if _title(p).startswith(f"ray::{name}")]

    def descendants(self) -> Iterator[psutil.Process]:
        yield from psutil.Process(self.process.pid).children(recursive=True)


def shared_memory_of(pids: Iterable[int]) -> list[str]:
    """Segments, whose names have their maker's pid in them; other runs have theirs beside them."""
    makers = {str(pid) for pid in pids}
    return [name for name in sorted(os.listdir("/dev/shm")) if makers & set(findall(r"\d+", name))]


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Of a file of JSON lines that may be written to in this moment, or not be there yet."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
