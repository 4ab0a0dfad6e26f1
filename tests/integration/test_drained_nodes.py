"""Nodes that Ray drains while a run goes on: real nodes, and the command that people use."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slow_attempts
from ray_nodes import Nodes, ray_nodes
from training import PATIENT, SMALL, Training, whole_lines

from agentrl.config.load import load_config
from agentrl.runtime.scheduling import make_scheduler
from scheduler.replay import read_log, replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
INTERRUPTED = 130


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """The driver's node has no room for workers."""
    with ray_nodes(head_cpus=0) as nodes:
        yield nodes


def config(base: dict[str, Any], nodes: Nodes, *, steps: int, **runtime: Any) -> dict[str, Any]:
    changed = copy.deepcopy(base)
    changed["runtime"] |= {"ray_address": nodes.address, **PATIENT, **runtime}
    changed["train"] |= {"steps": steps}
    return changed


def events(training: Training, kind: str) -> list[dict[str, Any]]:
    found = (line["event"] for line in whole_lines(training.run / "events.jsonl"))
    return [event for event in found if event["type"] == kind]


def log_of(training: Training) -> str:
    return (training.run / "log.jsonl").read_text()


def assert_replays(training: Training) -> None:
    with (training.run / "events.jsonl").open("rb") as file:
        scheduler = make_scheduler(load_config(training.folder / "run.yaml"), None)
        assert replay(scheduler, read_log(file)).difference is None


def test_workers_and_runners_leave_a_node_before_it_goes_and_nothing_is_lost(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Both workers, and with them the only training state, and the runners that are there."""
    first = nodes.add(2)
    alone = copy.deepcopy(SMALL)
    alone["train"] |= {"steps": 30}
    whole = Training(tmp_path / "whole", alone)
    told = Training(tmp_path / "told", config(SMALL, nodes, steps=30, runners=2))
    told.wait_for(lambda: told.steps_done() >= 2)
    assert len(nodes.processes(first, "Worker")) == 2
    assert nodes.processes(first, "Runner")
    second = nodes.add(2)
    nodes.drain(first, left_s=180)
    told.wait_for(lambda: not nodes.is_alive(first))  # by itself, when nothing is left there
    told.wait_for(lambda: len(events(told, "WorkerReady")) >= 4)
    assert len(nodes.processes(second, "Worker")) == 2
    assert whole.wait() == 0, whole.text
    assert told.wait() == 0, told.text
    notices = events(told, "PreemptionNotice")
    assert sorted(notice["worker_id"] for notice in notices) == ["worker-0", "worker-1"]
    assert all(60 < notice["deadline_s"] <= 180 for notice in notices)
    assert told.trained() == whole.trained()
    assert not {"infra_error", "late"} & set(told.summary["outcomes"])
    log = log_of(told)
    assert "a runner will be taken away" in log
    assert "going on from the newest checkpoint" not in log
    assert "too little time" not in log
    assert_replays(told)
    nodes.wait_until_clean(nodes.head, second)


@pytest.mark.soak
def test_attempts_of_a_runner_whose_time_is_up_go_on_elsewhere(
    nodes: Nodes, tmp_path: Path
) -> None:
    leaving = nodes.add(2)
    (tmp_path / "slow.py").write_text(slow_attempts.SLOW)
    training = Training(tmp_path, config(slow_attempts.config(), nodes, steps=5, runners=2))
    training.wait_for(lambda: len(slow_attempts.in_mid_conversation(training)) >= 6)
    assert nodes.processes(leaving, "Runner")
    nodes.add(2)
    nodes.drain(leaving, left_s=4)
    training.wait_for(lambda: log_of(training).count("a runner was lost") == 2)
    training.wait_for(lambda: not nodes.processes(leaving, "Runner"))
    assert training.wait() == 0, training.text
    assert sorted(training.trained()) == [1, 2, 3, 4, 5]
    attempts = slow_attempts.played(training)
    assert any(attempt.continued for attempt in attempts.values())
    assert "going on from the newest checkpoint" not in log_of(training)


@pytest.mark.soak
def test_slots_of_a_drained_node_are_left_and_lent_to_nobody(nodes: Nodes, tmp_path: Path) -> None:
    first = nodes.add(2)
    share = {"min_slice_s": 5.0}
    training = Training(tmp_path, config(SMALL, nodes, steps=40, share=share))
    training.wait_for(lambda: training.steps_done() >= 2)
    nodes.drain(first, left_s=120)
    training.wait_for(lambda: log_of(training).count("a slot was given back") == 2)
    second = nodes.add(2)
    training.wait_for(lambda: len(nodes.processes(second, "Worker")) == 2)
    training.wait_for(lambda: not nodes.is_alive(first))
    assert training.wait() == 0, training.text
    granted = [
        line["slot"].partition("/")[0]
        for line in whole_lines(training.run / "log.jsonl")
        if line["event"] == "a slot of the fleet was granted"
    ]
    assert granted == [first.node_id] * 2 + [second.node_id] * 2
    assert "a slot of the fleet is gone" not in log_of(training)
    assert training.summary["steps"] == 40
    assert "infra_error" not in training.summary["outcomes"]
    assert "going on from the newest checkpoint" not in log_of(training)


@pytest.mark.soak
def test_a_run_whose_driver_loses_its_machine_is_saved_and_goes_on_elsewhere(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.add(2)
    training = Training(tmp_path, config(SMALL, nodes, steps=1000))
    training.wait_for(lambda: training.steps_done() >= 2)
    nodes.drain(nodes.head, left_s=120)
    assert training.wait() == INTERRUPTED, training.text
    assert "this machine leaves the cluster" in training.text
    done = training.steps_done()
    elsewhere = copy.deepcopy(SMALL)
    elsewhere["train"] |= {"steps": done + 1}
    resumed = Training(tmp_path, elsewhere, "--resume")
    assert resumed.wait() == 0, resumed.text
    assert sorted(resumed.trained()) == list(range(1, done + 2))
