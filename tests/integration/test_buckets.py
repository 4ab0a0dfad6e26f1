"""Rollout workers of two kinds, and a router that knows what each costs: real processes."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import pytest
from training import SMALL, Training
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.config.load import load_config
from agentrl.record.reader import RunReader
from agentrl.runtime.scheduling import make_scheduler, recorded_costs
from agentrl.train.checkpoint_folders import latest_checkpoint, read_header
from scheduler.events import Restored
from scheduler.replay import read_log, replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_turns_are_served_by_buckets_of_different_parallelism(tmp_path: Path) -> None:
    config = copy.deepcopy(SMALL)
    config["runtime"] |= {
        "pin_cores": False,
        "buckets": [
            {"name": "crowded", "max_running": 8},
            {"name": "fast", "cores": 2, "max_running": 2},
        ],
    }
    config["scheduler"] = {"routing": {"policy": "buckets"}}
    config["train"] |= {"steps": 4, "groups_per_step": 4}
    training = Training(tmp_path, config)
    assert training.wait() == 0, training.text

    reader = RunReader(training.run)
    served: Counter[str] = Counter()
    for step in reader.steps("train"):
        for rows in reader.groups(step, "train").values():
            for row in rows:
                served.update(place["bucket"] for place in reader.line(row)["placements"])
    assert set(served) == {"crowded", "fast"}, served

    costs = recorded_costs(training.run / "costs.json")
    assert costs is not None
    assert [shape.tp for shape in costs.rollout.values()] == [1, 2]
    scheduler = make_scheduler(load_config(training.folder / "run.yaml"), costs)
    with (training.run / "events.jsonl").open("rb") as log:
        assert replay(scheduler, read_log(log)).difference is None


def test_a_resumed_run_goes_on_with_what_its_scheduler_had_learned(tmp_path: Path) -> None:
    config = copy.deepcopy(SMALL)
    config["scheduler"] = {"routing": {"policy": "buckets"}}
    config["train"] |= {"steps": 8}
    first = Training(tmp_path, config)
    first.wait_for(lambda: first.steps_done() >= 1)
    first.signal()
    assert first.wait() == 130, first.text
    checkpoint = latest_checkpoint(first.run / "checkpoints")
    assert checkpoint is not None
    learned = read_header(checkpoint).progress["learned"]
    assert isinstance(learned, dict)
    assert learned["lengths by pooled"]

    resumed = Training(tmp_path, config, "--resume")
    assert resumed.wait() == 0, resumed.text
    with (resumed.run / "events.jsonl").open("rb") as log:
        events = [entry.event for entry in read_log(log)]
    assert [e.learned for e in events if isinstance(e, Restored)] == [learned]
    result = CliRunner().invoke(app, ["replay", str(resumed.run)])
    assert result.exit_code == 0, result.output
    assert result.output.count(", identical") == 2
