"""The main job end to end: real processes, real boxes, real gradients, on a task of seconds."""

import copy
import signal
from pathlib import Path
from typing import Any

import pytest
from training import SMALL, Training, shared_memory_of, whole_lines

from agentrl.config.load import load_config
from agentrl.record.reader import RunReader
from agentrl.runtime.scheduling import make_scheduler
from scheduler.replay import read_log, replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def config(**changes: Any) -> dict[str, Any]:
    """`SMALL` with some keys of some sections changed."""
    changed = copy.deepcopy(SMALL)
    for section, keys in changes.items():
        changed[section] = {**changed.get(section, {}), **keys}
    return changed


def test_a_run_trains_and_leaves_a_whole_record(tmp_path: Path) -> None:
    training = Training(tmp_path, config())
    assert training.wait() == 0, training.text
    summary = training.summary
    assert summary["steps"] == 3
    assert summary["trajectories"] == 3 * 2 * 4
    assert summary["eval_reward"] is not None
    assert sum(summary["outcomes"].values()) == 24
    trained = training.trained()
    assert {step: len(tasks) for step, tasks in trained.items()} == {1: 2, 2: 2, 3: 2}
    steps = [line for line in training.metrics() if "train_s" in line]
    assert [line["staleness_max"] for line in steps] == [0, 0, 0]
    assert all(line["train/logprob_diff_max"] < 1e-4 for line in steps)
    assert (training.run / "training" / "step-000003.safetensors").exists()
    assert "agentrl inspect show" in training.text
    with (training.run / "events.jsonl").open("rb") as log:
        scheduler = make_scheduler(load_config(training.folder / "run.yaml"), None)
        report = replay(scheduler, read_log(log))
    assert report.difference is None
    assert report.num_decisions > 24


def test_stopping_and_resuming_trains_on_the_same_tasks_as_one_run(tmp_path: Path) -> None:
    whole = Training(tmp_path / "whole", config(train={"steps": 4}))
    assert whole.wait() == 0, whole.text
    halves = Training(tmp_path / "halves", config(train={"steps": 4}))
    halves.wait_for(lambda: halves.steps_done() >= 2)
    halves.signal()
    code = halves.wait()
    if code == 130:
        resumed = Training(tmp_path / "halves", config(train={"steps": 4}), "--resume")
        assert resumed.wait() == 0, resumed.text
    assert halves.trained() == whole.trained()


def test_asynchronous_runs_begin_groups_no_further_ahead_than_allowed(tmp_path: Path) -> None:
    """A group that later ones overtake may be older than that when its own turn comes."""
    training = Training(tmp_path, config(train={"steps": 5, "max_staleness": 2}))
    assert training.wait() == 0, training.text
    reader = RunReader(training.run)
    rows = [row for row in reader.rows(split="train") if row.dropped is None]
    assert {row.step for row in rows} == set(range(1, 6))
    for row in rows:
        in_order = int(row.group_id.removeprefix("g")) // SMALL["train"]["groups_per_step"]
        oldest, _ = reader.line(row)["policy_versions"]
        assert oldest >= in_order - 2, row


def test_killed_processes_end_neither_the_run_nor_its_record(tmp_path: Path) -> None:
    training = Training(tmp_path, config(train={"steps": 40}))
    for actor in ("Runner", "Worker", "Coordinator"):
        done = training.steps_done()
        training.wait_for(lambda done=done: training.steps_done() >= done + 2)
        victims = training.actors(actor)
        assert victims
        for process in victims:
            process.kill()
    assert training.wait() == 0, training.text
    assert training.summary["steps"] == 40
    assert sorted(training.trained()) == list(range(1, 41))


def test_a_worker_that_dies_while_the_run_starts_is_replaced(tmp_path: Path) -> None:
    training = Training(tmp_path, config(warmup={"steps": 0}))
    training.wait_for(lambda: training.actors("Worker") != [])
    training.actors("Worker")[0].kill()
    assert training.wait() == 0, training.text
    log = (training.run / "log.jsonl").read_text()
    assert "a worker died at the start" in log
    assert "going on from the newest checkpoint" not in log


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, times: int) -> None:
    training = Training(tmp_path, config(train={"steps": 1000}))
    training.wait_for(lambda: training.steps_done() >= 1)
    children = list(training.descendants())
    assert len(children) > 5
    for _ in range(times):
        training.signal(signal.SIGINT)
    assert training.wait() == 130, training.text
    assert [p for p in children if p.is_running() and p.status() != "zombie"] == []
    assert shared_memory_of(child.pid for child in children) == []
    if times == 1:
        assert list((training.run / "checkpoints").glob("step-*"))


def test_a_run_that_is_stopped_at_once_says_from_where_it_goes_on(tmp_path: Path) -> None:
    begun = Training(tmp_path, config(), "--set", "warmup.steps=100000")
    begun.wait_for(lambda: "supervised warm-up" in begun.text)
    stop_at_once(begun)
    assert "--resume goes on from the beginning" in begun.text
    resumed = Training(tmp_path, config(train={"steps": 1000}), "--resume")
    resumed.wait_for(lambda: resumed.steps_done() >= 1)
    stop_at_once(resumed)
    assert "--resume goes on from the newest checkpoint" in resumed.text


def stop_at_once(training: Training) -> None:
    """Where the first Ctrl-C leads to no end, as it must wait for processes that hang."""
    for worker in training.actors("Worker"):
        worker.suspend()
    training.signal(signal.SIGINT)
    training.wait_for(lambda: "Ctrl-C again to stop at once" in training.text)
    training.signal(signal.SIGINT)
    assert training.wait() == 130, training.text
    assert "stopped at once" in training.text


def test_an_environment_that_raises_and_scores_nonsense_does_not_end_the_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "wild.py").write_text(WILD)
    training = Training(
        tmp_path,
        config(
            env={"name": "wild.py:Wild", "options": {}},
            outcomes={"max_error_fraction": 1.0},
            warmup={"steps": 0},
        ),
    )
    assert training.wait() == 0, training.text
    outcomes = training.summary["outcomes"]
    assert outcomes["env_error"] > 0
    assert outcomes["unscored"] > 0
    assert outcomes["finished"] + outcomes.get("truncated", 0) > 0
    (told, *_) = [
        line
        for line in whole_lines(training.run / "log.jsonl")
        if line["event"].startswith("a method held the event loop")
    ]
    assert (told["process"], told["method"]) == ("runner-0", "Wild.start")
    assert training.text.count("a method held the event loop") == 1


def test_an_environment_that_only_raises_stops_the_run_and_shows_why(tmp_path: Path) -> None:
    (tmp_path / "wild.py").write_text(WILD)
    options = {"always_raises": True}
    training = Training(
        tmp_path,
        config(env={"name": "wild.py:Wild", "options": options}, warmup={"steps": 0}),
    )
    assert training.wait() == 1, training.text
    assert "RuntimeError: the wild one" in training.text


WILD = """
import time
from itertools import count
from agentrl import Env, Task, Turn, reward

class Wild(Env):
    always_raises: bool = False

    @classmethod
    def tasks(cls, split):
        return (Task(f"{split}-{n}", "go") for n in (range(9) if split == "eval" else count()))

    async def start(self):
        if self.always_raises or self.rng.random() < 0.2:
            raise RuntimeError("the wild one")
        if self.task.id.endswith("0"):
            time.sleep(0.3)
        return "go"

    @reward
    async def luck(self):
        return self.rng.choice([0.0, 1.0, None, float("nan"), 0.5])

    def demo(self):
        yield Turn("x")
"""
