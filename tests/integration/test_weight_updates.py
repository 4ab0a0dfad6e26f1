"""What new weights cost the turns that run when they come, as a run tells it: real processes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from training import SMALL, Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_each_step_tells_what_its_new_weights_cost(tmp_path: Path) -> None:
    config = copy.deepcopy(SMALL)
    config["env"] = {"name": "calculator"}
    del config["sandbox"]
    config["rollout"] |= {
        "max_turn_tokens": 160,
        "max_trajectory_tokens": 200,
        "context_tokens": 320,
    }
    config["train"] |= {"steps": 1000, "max_staleness": 2}
    config["runtime"] |= {"weight_update": "reprefill", "pin_cores": False}
    training = Training(tmp_path, config)
    training.wait_for(lambda: training.steps_done() >= 3 and met_running_turns(training))
    training.signal()
    assert training.wait() == 130, training.text
    steps = steps_of(training)
    assert all(line["publish_s"] > 0 for line in steps)
    assert sum(line["weights/stalled_turn_s"] for line in steps) > 0
    assert all(line["weights/stopped_s_max"] >= line["weights/stopped_s_mean"] for line in steps)
    assert sum(line["weights/drained_turns"] for line in steps) == 0


def steps_of(training: Training) -> list[dict[str, Any]]:
    return [line for line in training.metrics() if "train_s" in line]


def met_running_turns(training: Training) -> bool:
    return any(line["weights/recomputed_tokens"] > 0 for line in steps_of(training))
