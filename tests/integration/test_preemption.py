"""Workers that are told to end while a run goes on: real processes, real signals."""

from __future__ import annotations

import copy
import signal
from pathlib import Path
from typing import Any

import pytest
from training import SMALL, Training, whole_lines

from agentrl.config.load import load_config
from agentrl.runtime.scheduling import make_scheduler
from scheduler.replay import read_log, replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def config(*, steps: int, **runtime: Any) -> dict[str, Any]:
    changed = copy.deepcopy(SMALL)
    changed["runtime"] |= runtime
    changed["train"] |= {"steps": steps}
    return changed


def events(training: Training, kind: str) -> list[dict[str, Any]]:
    found = (line["event"] for line in whole_lines(training.run / "events.jsonl"))
    return [event for event in found if event["type"] == kind]


def worker_ids(training: Training, kind: str) -> list[str]:
    return [event["worker_id"] for event in events(training, kind)]


def test_workers_that_get_sigterm_leave_and_nothing_is_lost(tmp_path: Path) -> None:
    """Both of them, one after the other: the one that samples and the only one that trains."""
    whole = Training(tmp_path / "whole", config(steps=30))
    told = Training(tmp_path / "told", config(steps=30))
    for round_ in range(2):
        done = told.steps_done()
        told.wait_for(lambda done=done: told.steps_done() >= done + 2)
        workers = told.actors("Worker")
        assert len(workers) == 2
        workers[round_].send_signal(signal.SIGTERM)
        told.wait_for(lambda n=round_ + 1: len(events(told, "WorkerLost")) == n)
        told.wait_for(lambda n=round_ + 3: len(events(told, "WorkerReady")) == n)
    assert whole.wait() == 0, whole.text
    assert told.wait() == 0, told.text
    assert len(events(told, "PreemptionNotice")) == 2
    assert told.trained() == whole.trained()
    assert not {"infra_error", "late"} & set(told.summary["outcomes"])
    log = (told.run / "log.jsonl").read_text()
    assert "going on from the newest checkpoint" not in log
    assert "too little time" not in log
    with (told.run / "events.jsonl").open("rb") as file:
        scheduler = make_scheduler(load_config(told.folder / "run.yaml"), None)
        assert replay(scheduler, read_log(file)).difference is None
