"""A run that was killed with everything in it goes on where its attempts were."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from slow_attempts import SLOW, config, ids_of, in_mid_conversation, journal, known_ids, played
from training import Training

from agentrl.record.reader import RunReader
from agentrl.types import Trajectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def start(folder: Path, *arguments: str) -> Training:
    folder.mkdir(exist_ok=True)
    (folder / "slow.py").write_text(SLOW)
    return Training(folder, config(), *arguments)


def kill_everything(training: Training) -> None:
    """The driver, Ray's processes, every actor, every box: at once, and none gets a last word."""
    victims: dict[int, psutil.Process] = {}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        found = [psutil.Process(training.process.pid), *training.descendants()]
        victims |= {process.pid: process for process in found}
        for process in victims.values():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
    training.process.wait()
    _, alive = psutil.wait_procs(list(victims.values()), timeout=60)
    assert not alive


def newest_checkpoint(training: Training) -> int:
    return max(int(path.name[5:]) for path in (training.run / "checkpoints").glob("step-*"))


def is_worth_killing(training: Training) -> bool:
    """Some attempts of one step have ended, others are in the middle of it."""
    if training.steps_done() < 2:
        return False
    step, known = newest_checkpoint(training), journal(training).values()
    current = [attempt for attempt in known if attempt.newest_version == step]
    ended = [attempt for attempt in current if attempt.ended is not None]
    return bool(ended) and sum(len(a.turns) > 1 for a in current if a.ended is None) >= 2


def test_after_kill_9_of_everything_attempts_go_on_and_none_is_trained_twice(
    tmp_path: Path,
) -> None:
    whole = start(tmp_path / "whole")
    assert whole.wait() == 0, whole.text
    killed = start(tmp_path / "killed")
    killed.wait_for(lambda: is_worth_killing(killed))
    kill_everything(killed)
    step, left = newest_checkpoint(killed), journal(killed)
    under_way = {
        name: attempt
        for name, attempt in left.items()
        if attempt.ended is None and attempt.turns and attempt.newest_version <= step
    }
    assert under_way

    resumed = start(tmp_path / "killed", "--resume")
    assert resumed.wait() == 0, resumed.text
    assert resumed.trained() == whole.trained()
    counts = json.loads((resumed.run / "run.json").read_text())["launches"][-1]["resumed"]
    assert f"continued {counts['continued']}, " in resumed.text

    attempts = played(resumed)
    continued = {name for name, attempt in attempts.items() if attempt.continued}
    assert continued == set(under_way)
    assert len(continued) == counts["continued"]
    for name, before in under_way.items():
        ids = known_ids(before)
        assert ids_of(attempts[name])[: len(ids)] == ids
        assert [turn.text for turn in attempts[name].turns][: len(before.turns)] == [
            turn.said.text for turn in before.turns
        ]
    taken = {
        name
        for name, attempt in left.items()
        if attempt.ended is not None and _is_same(attempt.ended, attempts[name])
    }
    assert taken
    assert len(taken) == counts["taken_from_record"]

    rows = RunReader(resumed.run).rows(split="train")
    assert max(Counter(row.trajectory_id for row in rows).values()) == 1
    assert Counter(row.group_id for row in rows if row.dropped is None) == {
        f"g{number:06d}": 4 for number in range(2 * 5)
    }


def _is_same(one: Trajectory, other: Trajectory) -> bool:
    return one.started_s == other.started_s and ids_of(one) == ids_of(other)


@pytest.mark.soak
def test_a_killed_runner_costs_no_attempt_that_can_go_on(tmp_path: Path) -> None:
    training = start(tmp_path)
    training.wait_for(lambda: len(in_mid_conversation(training)) >= 3)
    for runner in training.actors("Runner"):
        os.kill(runner.pid, signal.SIGKILL)
    assert training.wait() == 0, training.text
    assert sum(attempt.continued > 0 for attempt in played(training).values()) >= 1
    assert sorted(training.trained()) == [1, 2, 3, 4, 5]
    assert not [a for a in journal(training).values() if a.split == "train" and a.ended is None]
