"""An engine that breaks in a step (a fault of the device, a bug): its worker is replaced."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from training import SMALL, Training, whole_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BREAKING = """
from itertools import count
from agentrl import Env, Task, Turn, reward
from agentrl.engine.batcher import Batcher

steps, step = count(), Batcher.step

def break_once(batcher):
    if next(steps) == 40:
        raise IndexError("a fault of the device")
    step(batcher)

Batcher.step = break_once  # in processes that have warmed up: not in those that replace them


class Breaking(Env):
    @classmethod
    def tasks(cls, split):
        return (Task(f"{split}-{n}", "go") for n in (range(9) if split == "eval" else count()))

    @reward
    async def luck(self):
        return self.rng.choice([0.0, 1.0])

    def demo(self):
        yield Turn("x")
"""


def test_the_only_worker_that_samples_is_replaced_when_its_engine_breaks(tmp_path: Path) -> None:
    (tmp_path / "breaking.py").write_text(BREAKING)
    config = copy.deepcopy(SMALL)
    config["env"] = {"name": "breaking.py:Breaking"}
    config["train"] |= {"steps": 6}
    training = Training(tmp_path, config)
    assert training.wait() == 0, training.text
    assert "an engine broke" in training.text
    assert "a fault of the device" in training.text
    assert set(training.summary["outcomes"]) <= {"finished", "truncated"}
    events = [line["event"]["type"] for line in whole_lines(training.run / "events.jsonl")]
    assert events.count("WorkerLost") == 1
    assert "going on from the newest checkpoint" not in (training.run / "log.jsonl").read_text()
