"""The replay cycle on a real run: who was trained on how often, by what the trainer itself wrote."""

import copy
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from training import SMALL, Training

from agentrl.config.sections import ReplaySection
from agentrl.record.index import IndexRow
from agentrl.record.reader import RunReader
from agentrl.runtime.experience import RecentExperience
from agentrl.types import Group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 6
REPLAY = ReplaySection(share=0.5, max_reuses=2, max_staleness=3)


def config() -> dict[str, Any]:
    """Two fresh and two replayed groups a step."""
    changed = copy.deepcopy(SMALL)
    changed["train"] |= {"steps": STEPS, "groups_per_step": 4, "replay": REPLAY.model_dump()}
    return changed


def test_groups_are_replayed_as_often_as_allowed_across_a_kill(tmp_path: Path) -> None:
    killed = Training(tmp_path, config())
    killed.wait_for(lambda: killed.steps_done() >= 3)
    killed.kill()
    resumed = Training(tmp_path, config(), "--resume")
    assert resumed.wait() == 0, resumed.text
    reader = RunReader(resumed.run)
    fresh = [row for row in reader.rows(split="train") if row.fate == "trained"]
    assert len({row.trajectory_id for row in fresh}) == len(fresh) == STEPS * 2 * 4
    seen = trained_on(reader)
    assert all(set(counts.values()) == {1} for counts in seen.values())
    times = Counter(name for counts in seen.values() for name in counts)
    assert times.keys() == {row.trajectory_id for row in fresh}
    assert max(times.values()) <= 1 + REPLAY.max_reuses
    for row in fresh:
        replays = reader.replays(group_id=row.group_id)
        assert [replay.reuse for replay in replays] == list(range(1, len(replays) + 1))
        trained_in = [step for step, counts in seen.items() if row.trajectory_id in counts]
        assert trained_in == [row.step, *(replay.step for replay in replays)]
    for line in reader.metrics():
        if "train_s" in line:
            assert line["replayed_groups"] == (2 if line["step"] > 1 else 0)
            assert line["staleness_max"] == 0
    assert [(r.step, r.group_id, r.reuse) for r in reader.replays()] == as_one_launch(reader, fresh)


def trained_on(reader: RunReader) -> dict[int, Mapping[str, int]]:
    """Step to the trajectories whose tokens its trainer saw, each with its number of rows."""
    found = {}
    for step in reader.layout.training_steps():
        with safe_open(reader.layout.training_step(step), framework="numpy") as file:
            samples = json.loads(file.metadata()["samples"])
        found[step] = Counter(trajectory_id for trajectory_id, _ in samples)
    return found


def as_one_launch(reader: RunReader, fresh: list[IndexRow]) -> list[tuple[int, str, int]]:
    """What a run that nobody killed would have drawn from the same groups."""
    experience = RecentExperience(REPLAY, num_groups=2, seed=0)
    drawn = []
    for step in range(1, STEPS + 1):
        drawn += [(step, group.group_id, group.reuse) for group in experience.draw(step)]
        members: dict[str, list[IndexRow]] = {}
        for row in fresh:
            if row.step == step:
                members.setdefault(row.group_id, []).append(row)
        experience.keep(step, [group_of(reader, rows) for rows in members.values()])
    return drawn


def group_of(reader: RunReader, rows: list[IndexRow]) -> Group:
    trajectories = tuple(reader.trajectory(row).trajectory for row in rows)
    first = rows[0]
    return Group(
        group_id=first.group_id, task_id=first.task_id, size=len(rows), trajectories=trajectories
    )
