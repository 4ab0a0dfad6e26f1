"""Workers that change roles while a run goes on, and die while they do: real processes."""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from training import SMALL, Training

from agentrl.config.load import load_config
from agentrl.runtime.scheduling import make_scheduler, recorded_costs
from scheduler.replay import read_log, replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
KILLING = (sys.executable, str(Path(__file__).with_name("killed_shifts.py")))


def config(layout: str, *, steps: int, **runtime: Any) -> dict[str, Any]:
    changed = copy.deepcopy(SMALL)
    changed["runtime"] |= {"layout": layout, **runtime}
    changed["train"] |= {"steps": steps}
    changed["checkpoint"] = {"every_steps": 2}
    return changed


def decisions(training: Training) -> list[dict[str, Any]]:
    lines = (training.run / "events.jsonl").read_text().splitlines()
    return [decision for line in lines for decision in json.loads(line)["decisions"]]


def ended(training: Training) -> Counter[tuple[str, str]]:
    """Handoffs by their outcome and what the worker serves then."""
    return Counter(
        (decision["outcome"], decision["duty"]["role"])
        for decision in decisions(training)
        if decision["type"] == "HandoffEnded"
    )


def assert_replays(training: Training) -> None:
    costs = recorded_costs(training.run / "costs.json")
    assert costs is not None
    scheduler = make_scheduler(load_config(training.folder / "run.yaml"), costs)
    with (training.run / "events.jsonl").open("rb") as log:
        assert replay(scheduler, read_log(log)).difference is None


def test_all_workers_serve_and_then_all_train(tmp_path: Path) -> None:
    training = Training(tmp_path, config("colocated", steps=5))
    assert training.wait() == 0, training.text
    assert training.summary["steps"] == 5
    outcomes = ended(training)
    assert outcomes["completed", "training"] >= 5
    assert outcomes["completed", "rollout"] >= 5
    assert set(outcomes) == {("completed", "training"), ("completed", "rollout")}
    steps = [line for line in training.metrics() if "train_s" in line]
    assert all(line["train/replicas"] == 2 for line in steps)
    assert all(line["staleness_max"] == 0 for line in steps)
    assert all(line["train/logprob_diff_max"] < 1e-4 for line in steps)
    assert_replays(training)


def test_workers_killed_at_every_stage_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """Both ways. Each step is made of the tasks that it is made of without any kill."""
    whole = Training(tmp_path / "whole", config("disaggregated", steps=80))
    shifting = config("colocated", steps=80, training_workers=2, pin_cores=False)
    killed = Training(tmp_path / "killed", shifting, program=KILLING)
    assert whole.wait() == 0, whole.text
    assert killed.wait() == 0, killed.text
    points = (killed.folder / "killed.txt").read_text().splitlines()
    assert len(points) == 10, points
    assert killed.trained() == whole.trained()
    attempts = [t for step in killed.trained().values() for t in step]
    assert len(attempts) == len(set(attempts)) == 160
    assert "going on from the newest checkpoint" not in (killed.run / "log.jsonl").read_text()
    assert_replays(killed)
