"""Workers that change roles while a run goes on, and die while they do: real processes."""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import detours
import pytest
from training import SMALL, Training, judged

from agentrl.config.load import load_config
from agentrl.record.reader import RunReader
from agentrl.runtime.scheduling import make_scheduler, recorded_costs
from scheduler.replay import read_log, replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
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
    """Rollout and training, both ways. Each step is made of the tasks that it is made of without
    any kill."""
    whole = Training(tmp_path / "whole", config("disaggregated", steps=80))
    shifting = config("colocated", steps=80, training_workers=2, pin_cores=False)
    ways = {"WAYS": "rollout>training training>rollout"}
    killed = Training(tmp_path / "killed", shifting, program=KILLING, environment=ways)
    assert whole.wait() == 0, whole.text
    assert killed.wait() == 0, killed.text
    points = (killed.folder / "killed.txt").read_text().splitlines()
    assert len(points) == 10, points
    assert killed.trained() == whole.trained()
    attempts = [t for step in killed.trained().values() for t in step]
    assert len(attempts) == len(set(attempts)) == 160
    assert "going on from the newest checkpoint" not in (killed.run / "log.jsonl").read_text()
    assert_replays(killed)


# ------------------------------------------------------------------------------------ with a judge

ALL_WAYS = set(permutations(("rollout", "genrm", "training"), 2))
KILLED_WAYS = sorted(way for way in ALL_WAYS if "genrm" in way)
NUM_STAGES = 5
LONG_S = 900.0
"""Only to catch hangs, of a run whose workers are started anew twenty times."""


def judged_config(layout: str, *, steps: int, **runtime: Any) -> dict[str, Any]:
    config = judged()
    config["runtime"] |= {"layout": layout, **runtime}
    config["train"] |= {"steps": steps}
    return config


def ways(training: Training) -> Counter[tuple[str, str]]:
    """Roles before and after, of shifts that were brought to their end."""
    begun: dict[tuple[str, int], tuple[str, str]] = {}
    made: Counter[tuple[str, str]] = Counter()
    for decision in decisions(training):
        key = (decision.get("worker_id", ""), decision.get("generation", -1))
        if decision["type"] == "Shift":
            begun[key] = (decision["source"]["role"], decision["target"]["role"])
        elif decision["type"] == "HandoffEnded" and decision["outcome"] == "completed":
            made[begun[key]] += 1
    return made


def assert_none_was_lost_or_doubled(training: Training, *, steps: int) -> None:
    """Each group that was begun was trained on once, or rejected because its judge said nothing
    readable; the last ones may not have been reached."""
    log = (training.run / "events.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in log]
    rejected = {e["group_id"] for e in events if e["type"] == "GroupRejected"}
    rows = [row for row in RunReader(training.run).rows() if row.split == "train"]
    trained = {(row.step, row.group_id) for row in rows if row.dropped is None}
    groups = [group_id for _, group_id in trained]
    assert len(groups) == len(set(groups)) == 2 * steps
    assert {step for step, _ in trained} == set(range(1, steps + 1))
    numbers = sorted(int(group_id.removeprefix("g")) for group_id in {*groups, *rejected})
    assert numbers == list(range(len(numbers)))
    attempts = [row.trajectory_id for row in rows]
    assert len(attempts) == len(set(attempts))


@pytest.mark.soak
def test_two_workers_fill_three_roles_as_the_work_asks_for_it(tmp_path: Path) -> None:
    config = judged_config("elastic", steps=12, genrm_workers=0)
    config["train"]["groups_per_step"] = 2
    options = {"cooldown_s": 0.05, "immunity_s": 0.2, "margin": 0.01, "horizon_s": 10}
    config["scheduler"] = {"shifting": {"policy": "pay_back", "options": options}}
    training = Training(tmp_path, config)
    assert training.wait() == 0, training.text
    assert training.summary["steps"] == 12
    made = ways(training)
    assert {source for source, _ in made} == {"rollout", "genrm", "training"}, made
    assert {target for _, target in made} == {"rollout", "genrm", "training"}, made
    assert_none_was_lost_or_doubled(training, steps=12)
    outcomes = training.summary["outcomes"]
    assert "infra_error" not in outcomes, outcomes
    steps = [line for line in training.metrics() if "train_s" in line]
    assert all(line["staleness_max"] == 0 for line in steps)
    assert_replays(training)


@pytest.mark.soak
def test_workers_killed_on_their_way_into_and_out_of_judging_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every stage of every way; workers move in all six ways meanwhile."""
    config = judged_config("colocated", steps=24, genrm_workers=0, training_workers=2)
    environment = {
        "WAYS": " ".join(">".join(way) for way in KILLED_WAYS),
        "DETOURS": "1",
    }
    killed = Training(tmp_path, config, program=KILLING, environment=environment)
    assert killed.wait(deadline_s=LONG_S) == 0, killed.text
    points = (killed.folder / "killed.txt").read_text().splitlines()
    assert len(points) == NUM_STAGES * len(KILLED_WAYS), points
    assert set(ways(killed)) == ALL_WAYS
    assert_none_was_lost_or_doubled(killed, steps=24)
    assert "going on from the newest checkpoint" not in (killed.run / "log.jsonl").read_text()
    monkeypatch.setattr("agentrl.runtime.scheduling.wire_shifts", detours.wire_shifts)
    assert_replays(killed)
