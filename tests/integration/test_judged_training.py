"""A run whose rewards come from a judge of its own fleet, and what a killed judge costs it."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from training import Training, judged

from agentrl.config.load import load_config
from agentrl.record.reader import RunReader
from agentrl.runtime.scheduling import make_scheduler
from agentrl.types import Outcome, Trajectory
from scheduler.decisions import Place
from scheduler.events import Role, Submitted, WorkerLost, WorkerReady
from scheduler.replay import LogEntry, read_log, replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WATCHED = '''
import os
from pathlib import Path
from envs.shop import Shop

class Watched(Shop):
    """Says in which processes a judge is taught."""

    pids: str = ""

    @classmethod
    def judge_questions(cls, rng):
        Path(cls.pids, str(os.getpid())).touch()
        return super().judge_questions(rng)
'''

RACE = '''
from itertools import count
from agentrl import (
    Contest, Env, Question, QuestionKind, RewardPart, Task, Turn, Verdict, reward
)

class Race(Env):
    """Half for luck, half for a longer answer than the others gave."""

    @classmethod
    def tasks(cls, split):
        return (Task(f"{split}-{n}", "go") for n in (range(9) if split == "eval" else count()))

    @reward(weight=0.5)
    def luck(self):
        return self.rng.random()

    @reward(weight=0.5)
    def longer(self):
        return Contest("Longer?", "x" * min(len(self.turns[-1].text), 8))

    def demo(self):
        yield Turn("x" * self.rng.randint(1, 8))

    @classmethod
    def judge_questions(cls, rng):
        while True:
            pair = tuple("x" * rng.randint(0, 8) for _ in range(2))
            yield Question(kind=QuestionKind.COMPARE, text="Longer?", material=pair)

    @classmethod
    def expert_verdict(cls, question):
        first, second = map(len, question.material)
        value = 0.5 if first == second else float(first > second)
        return Verdict((RewardPart(name="better", value=value),))
'''


def config(folder: Path, **train: Any) -> dict[str, Any]:
    """A policy that was hardly taught, and a judge that knows the form of a verdict."""
    (folder / "pids").mkdir(exist_ok=True)
    (folder / "watched.py").write_text(WATCHED)
    small = judged()
    small["env"] = {"name": "watched.py:Watched", "options": {"pids": str(folder / "pids")}}
    small["train"] |= train
    return small


def trajectories(run: Path) -> list[Trajectory]:
    reader = RunReader(run)
    return [reader.trajectory(row).trajectory for row in reader.rows()]


def entries(run: Path) -> list[LogEntry]:
    with (run / "events.jsonl").open("rb") as log:
        return list(read_log(log))


def assert_no_verdict_was_made_up(played: list[Trajectory]) -> None:
    for trajectory in played:
        read = [j for j in trajectory.judgements if j.error is None]
        if trajectory.reward is None:
            assert trajectory.outcome not in (Outcome.FINISHED, Outcome.TRUNCATED)
        else:
            (judgement,) = read
            manners = [p for p in trajectory.reward_parts if p.name.startswith("manners/")]
            assert [p.value for p in manners] == [p.value for p in judgement.parts]
            assert [p.rationale for p in manners] == [p.rationale for p in judgement.parts]
            assert judgement.num_tokens > 0


def test_a_judge_of_the_fleet_is_taught_once_and_scores_every_attempt(tmp_path: Path) -> None:
    training = Training(tmp_path, config(tmp_path, steps=2))
    assert training.wait() == 0, training.text
    assert "judge warm-up 100/100" in training.text
    played = trajectories(training.run)
    assert_no_verdict_was_made_up(played)
    assert sum(t.reward is not None for t in played) >= 2 * 2 * 2
    log = entries(training.run)
    asked = {
        entry.event.trajectory_id
        for entry in log
        if isinstance(entry.event, Submitted) and entry.event.role is Role.GENRM
    }
    places = [d for entry in log for d in entry.decisions if isinstance(d, Place)]
    judges = {
        entry.event.worker_id
        for entry in log
        if isinstance(entry.event, WorkerReady) and entry.event.role is Role.GENRM
    }
    assert len(judges) == 1
    assert {place.worker_id for place in places if place.trajectory_id in asked} == judges
    assert {place.worker_id for place in places if place.trajectory_id not in asked}.isdisjoint(
        judges
    )
    scheduler = make_scheduler(load_config(training.folder / "run.yaml"), None)
    assert replay(scheduler, log).difference is None
    resumed = Training(tmp_path, config(tmp_path, steps=3), "--resume")
    assert resumed.wait() == 0, resumed.text
    assert "judge warm-up" not in resumed.text
    assert resumed.summary["steps"] == 3


def test_a_killed_judge_costs_no_verdict(tmp_path: Path) -> None:
    training = Training(tmp_path, config(tmp_path, steps=12))
    training.wait_for(lambda: training.steps_done() >= 2)
    taught = {int(path.name) for path in (tmp_path / "pids").iterdir()}
    (judge,) = [worker for worker in training.actors("Worker") if worker.pid in taught]
    judge.send_signal(signal.SIGKILL)
    psutil.wait_procs([judge], timeout=30)
    killed_after = training.steps_done()
    assert training.wait() == 0, training.text
    assert training.summary["steps"] == 12
    assert killed_after < 12
    assert_no_verdict_was_made_up(trajectories(training.run))
    log = entries(training.run)
    ready = [
        entry.event
        for entry in log
        if isinstance(entry.event, WorkerReady) and entry.event.role is Role.GENRM
    ]
    (lost,) = {e.event.worker_id for e in log if isinstance(e.event, WorkerLost)}
    assert {event.worker_id for event in ready} == {lost}
    assert len({event.generation for event in ready}) == 2
    served = Counter(
        decision.worker_generation
        for entry in log
        for decision in entry.decisions
        if isinstance(decision, Place) and decision.worker_id == lost
    )
    assert len(served) == 2
    outcomes = training.summary["outcomes"]
    assert outcomes.get("finished", 0) + outcomes.get("truncated", 0) >= 12 * 2 * 2


def test_members_of_a_group_are_compared_when_all_have_ended(tmp_path: Path) -> None:
    (tmp_path / "race.py").write_text(RACE)
    race = config(tmp_path, steps=3)
    race["env"] = {"name": "race.py:Race", "options": {}}
    training = Training(tmp_path, race)
    assert training.wait() == 0, training.text
    reader = RunReader(training.run)
    num_whole = 0
    for step in (1, 2, 3):
        for rows in reader.groups(step, "train").values():
            members = [reader.trajectory(row).trajectory for row in rows]
            trained = [member for member in members if member.reward is not None]
            values = [member.reward_parts[-1].value for member in trained]
            assert all(member.reward_parts[-1].name == "longer" for member in trained)
            judgements = [j for member in members for j in member.judgements]
            assert {j.kind for j in judgements} == {"compare"}
            if len(members) == 4 and all(j.error is None for j in judgements):
                num_whole += 1
                assert sum(value or 0.0 for value in values) == pytest.approx(len(members) / 2)
    assert num_whole > 0
    evaluated = [t for t in trajectories(training.run) if t.split == "eval"]
    assert {tuple(p.name for p in t.reward_parts) for t in evaluated} == {("luck",)}
