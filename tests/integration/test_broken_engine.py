"""An engine that breaks in a step (a fault of the device, a bug): its worker is replaced."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from training import SMALL, Training, whole_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FAILED = 1

ENVIRONMENT = """
from itertools import count
from agentrl import Env, Task, Turn, reward

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

# All of these hold in processes that have warmed up, and not in those that replace them.
IN_A_STEP = """
from agentrl.engine.batcher import Batcher

steps, step = count(), Batcher.step

def break_once(batcher):
    if next(steps) == 40:
        raise IndexError("a fault of the device")
    step(batcher)

Batcher.step = break_once
"""

IN_A_SWAP = """
import torch
from types import SimpleNamespace
from agentrl.engine import weights

arrays = count()

def memory_ends_once(array):
    if next(arrays) == 40:
        raise torch.OutOfMemoryError("a fault of the device: CUDA out of memory")
    return torch.tensor(array)

weights.torch = SimpleNamespace(tensor=memory_ends_once, no_grad=torch.no_grad)
"""

BY_ITS_WEIGHTS = """
from agentrl.runtime.training import TrainingContext

trained = TrainingContext.weights

def not_finite(context):
    return {name: array * float("nan") for name, array in trained(context).items()}

TrainingContext.weights = not_finite
"""


def config_of(folder: Path, fault: str) -> dict[str, Any]:
    (folder / "breaking.py").write_text(ENVIRONMENT + fault)
    config: dict[str, Any] = copy.deepcopy(SMALL)
    config["env"] = {"name": "breaking.py:Breaking"}
    config["train"] |= {"steps": 6}
    return config


@pytest.mark.parametrize("fault", [IN_A_STEP, IN_A_SWAP], ids=["step", "swap"])
def test_the_only_worker_that_samples_is_replaced_when_its_engine_breaks(
    tmp_path: Path, fault: str
) -> None:
    training = Training(tmp_path, config_of(tmp_path, fault))
    assert training.wait() == 0, training.text
    assert "an engine broke" in training.text
    assert "a fault of the device" in training.text
    assert set(training.summary["outcomes"]) <= {"finished", "truncated"}
    events = [line["event"]["type"] for line in whole_lines(training.run / "events.jsonl")]
    assert events.count("WorkerLost") == 1
    assert "going on from the newest checkpoint" not in (training.run / "log.jsonl").read_text()


def test_weights_that_break_every_engine_end_the_run_with_the_reason(tmp_path: Path) -> None:
    training = Training(tmp_path, config_of(tmp_path, BY_ITS_WEIGHTS))
    assert training.wait() == FAILED, training.text
    assert "every engine broke 3 times" in training.text
    assert "the newest error: " in training.text
    assert "logits are not finite" in training.text
    assert "Traceback" not in training.text.split("error:")[-1]
