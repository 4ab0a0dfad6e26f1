"""Processes that live and do nothing: what hangs is replaced, and a run that stands still says why."""

import copy
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from training import SMALL, Training, whole_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STALLED = 3


def config(**changes: Any) -> dict[str, Any]:
    changed = copy.deepcopy(SMALL)
    for section, keys in changes.items():
        changed[section] = {**changed.get(section, {}), **keys}
    return changed


def left_behind(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != "zombie"]


def test_an_environment_that_never_returns_ends_the_run_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    training = Training(
        tmp_path,
        config(
            env={"name": "stuck.py:Stuck", "options": {}},
            warmup={"steps": 0},
            rollout={"trajectory_timeout_s": 15, "tool_timeout_s": 15},
            runtime={"stall_timeout_s": 60, "silence_timeout_s": 1000},
        ),
    )
    training.wait_for(lambda: "eval after step 0" in training.text)
    (tmp_path / "stick").touch()
    children = list(training.descendants())
    assert training.wait() == STALLED, training.text
    assert "nothing moved for" in training.text
    assert "complete groups for step" in training.text
    assert "runner-0, which does not answer" in training.text
    assert left_behind(children) == []


def test_a_run_whose_boxes_are_gone_says_so_and_so_does_its_log(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    training = Training(
        tmp_path,
        config(
            env={"name": "stuck.py:Stuck", "options": {}},
            warmup={"steps": 0},
            rollout={"trajectory_timeout_s": 15, "tool_timeout_s": 15},
            runtime={"stall_timeout_s": 60},
        ),
    )
    training.wait_for(lambda: "eval after step 0" in training.text)
    (tmp_path / "lose").touch()
    assert training.wait() == STALLED, training.text
    assert re.search(
        r"since the last batch: .*\d+ infra_error.*newest error: .*SandboxLost: no engine any more",
        training.text,
    )
    assert re.search(r"boxes, engines or judges to work again: .*are held back", training.text)
    ended = re.search(r"since the last batch: .*?(\d+) infra_error", training.text)
    assert ended is not None
    assert int(ended[1]) < 100, "a minute of trying at full speed begins thousands"
    lines = whole_lines(training.run / "log.jsonl")
    losses = [line for line in lines if line["event"].startswith("a group lost too many members")]
    assert losses[-1]["error"].endswith("SandboxLost: no engine any more")


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["Worker", "Runner", "Coordinator"])
def test_processes_that_are_stopped_are_replaced_and_the_run_goes_on(
    tmp_path: Path, kind: str
) -> None:
    training = Training(tmp_path, config(train={"steps": 60}, runtime={"silence_timeout_s": 15}))
    training.wait_for(lambda: training.steps_done() >= 1)
    stopped = training.actors(kind)[-1:]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    assert training.wait() == 0, training.text
    assert "does not answer" in training.text
    assert training.summary["steps"] == 60
    assert left_behind(stopped) == []


STUCK = """
import time
from itertools import count
from pathlib import Path
from agentrl import Env, Task, Turn, reward
from sandboxes.sandbox import SandboxLost

HERE = Path(__file__).parent

class Stuck(Env):
    @classmethod
    def tasks(cls, split):
        return (Task(f"{split}-{n}", "go") for n in (range(9) if split == "eval" else count()))

    async def start(self):
        while (HERE / "stick").exists():
            time.sleep(1)  # in an async function: nothing else of its process runs meanwhile
        if (HERE / "lose").exists():
            raise SandboxLost("no engine any more")
        return "go"

    @reward
    async def luck(self):
        return self.rng.choice([0.0, 1.0])

    def demo(self):
        yield Turn("x")
"""
