"""A short run whose processes are killed at random, in all roles; `random_kills.py` does long ones."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
from random_kills import Killer, findings, launches, replayed
from training import SMALL, Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 100


@pytest.mark.soak
def test_random_kills_lose_nothing_double_nothing_and_leave_nothing(tmp_path: Path) -> None:
    config = copy.deepcopy(SMALL)
    config["runtime"] |= {"layout": "elastic", "training_workers": 2, "pin_cores": False}
    config["train"] |= {"steps": STEPS}
    config["rollout"] |= {"retries": 5}
    training = Training(tmp_path, config)
    killer = Killer(training, random.Random(1), (3.0, 6.0), max_kills=6)
    killer.run(timeout_s=600)
    assert training.process.poll() == 0, training.text
    assert killer.kills
    assert findings(training, groups_per_step=2, steps=STEPS) == []
    assert killer.left_behind() == []
    is_identical, said = replayed(training)
    assert is_identical, said


@pytest.mark.soak
def test_a_killed_coordinator_goes_on_where_it_was(tmp_path: Path) -> None:
    """Each step is made of the tasks that it is made of without any kill, in one launch."""
    config = copy.deepcopy(SMALL)
    config["train"] |= {"steps": STEPS}
    whole = Training(tmp_path / "whole", config)
    killed = Training(tmp_path / "killed", config)
    for _ in range(3):
        done = killed.steps_done()
        killed.wait_for(lambda done=done: killed.steps_done() >= done + 5)
        (coordinator,) = killed.actors("Coordinator")
        coordinator.kill()
    assert whole.wait() == 0, whole.text
    assert killed.wait() == 0, killed.text
    assert launches(killed) == 1
    assert killed.trained() == whole.trained()
    assert findings(killed, groups_per_step=2, steps=STEPS) == []
    assert set(killed.summary["outcomes"]) <= {"finished", "truncated"}
    assert killed.summary["trajectories"] == whole.summary["trajectories"]
    is_identical, said = replayed(killed)
    assert is_identical, said
