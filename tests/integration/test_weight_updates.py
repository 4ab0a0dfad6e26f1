"""What new weights cost the turns that run when they come, as a run tells it: real processes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from training import SMALL, Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_each_step_tells_what_its_new_weights_cost(tmp_path: Path) -> None:
    config = copy.deepcopy(SMALL)
    config["env"] = {"name": "calculator"}
    del config["sandbox"]
    config["rollout"] |= {"max_turn_tokens": 24, "context_tokens": 256}
    config["train"] |= {"steps": 12, "max_staleness": 2}
    config["runtime"] |= {"weight_update": "reprefill", "pin_cores": False}
    training = Training(tmp_path, config)
    assert training.wait(deadline_s=500) == 0, training.text
    steps = [line for line in training.metrics() if "train_s" in line]
    assert len(steps) == 12
    assert all(line["publish_s"] > 0 for line in steps)
    assert sum(line["weights/recomputed_tokens"] for line in steps) > 0
    assert sum(line["weights/stalled_turn_s"] for line in steps) > 0
    assert all(line["weights/stopped_s_max"] >= line["weights/stopped_s_mean"] for line in steps)
    assert sum(line["weights/drained_turns"] for line in steps) == 0
