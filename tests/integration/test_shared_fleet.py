"""Two runs that take turns on the slots of one cluster: real nodes, real processes."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError
from ray_nodes import DEADLINE_S, Nodes, ray_nodes
from training import PATIENT, SMALL, Training

from agentrl.runtime.broker import GRACE_S, NAME
from agentrl.runtime.cluster import joined_cluster
from scheduler.slices import Standing

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(1500)]
SLICE_S = 5.0
NUM_SLOTS = 2


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with ray_nodes(head_cpus=NUM_SLOTS) as nodes, joined_cluster(nodes.address):
        yield nodes


def config(nodes: Nodes, *, steps: int) -> dict[str, Any]:
    """Needs both slots to work: one trains, one samples."""
    changed = copy.deepcopy(SMALL)
    share = {"min_slice_s": SLICE_S}
    changed["runtime"] |= {"ray_address": nodes.address, "share": share, **PATIENT}
    changed["train"] |= {"steps": steps}
    changed["checkpoint"] = {"every_steps": 0}
    return changed


def standings() -> dict[str, Standing]:
    """By run, as the broker has it; nothing while there is no broker."""
    try:
        broker = ray.get_actor(NAME)
        found: list[Standing] = ray.get(broker.standings.remote(), timeout=DEADLINE_S)
    except (ValueError, RayActorError):
        return {}
    return {standing.tenant.job: standing for standing in found}


def num_given_back(training: Training) -> int:
    return (training.run / "log.jsonl").read_text().count("a slot was given back")


def test_two_runs_take_turns_and_both_reach_their_last_step(nodes: Nodes, tmp_path: Path) -> None:
    runs = [Training(tmp_path / name, config(nodes, steps=25)) for name in ("a", "b")]
    for run in runs:
        run.wait_for(lambda: len(standings()) == 2)
    bound_s = NUM_SLOTS * (SLICE_S + GRACE_S)
    started, together_s = time.monotonic(), 0.0
    while all(run.process.poll() is None for run in runs):
        seen = standings()
        assert time.monotonic() - started < 1200
        held = [slot for standing in seen.values() for slot in standing.held]
        assert len(held) == len(set(held)) <= NUM_SLOTS
        if len(seen) == 2:
            together_s = time.monotonic() - started
        if all(run.steps_done() for run in runs):
            assert all(abs(standing.deficit_s) <= bound_s for standing in seen.values()), seen
        time.sleep(0.5)
    for run in runs:
        assert run.wait() == 0, run.text
        assert run.summary["steps"] == 25
        trained = [task for tasks in run.trained().values() for task in tasks]
        assert len(trained) == len(set(trained)) >= 50
    assert together_s > SLICE_S
    assert min(num_given_back(run) for run in runs) >= 2
    nodes.wait_until_clean(nodes.head)


def test_a_killed_run_frees_its_slots_and_a_dead_broker_is_replaced(
    nodes: Nodes, tmp_path: Path
) -> None:
    victim = Training(tmp_path / "victim", config(nodes, steps=1000))
    victim.wait_for(lambda: victim.steps_done() >= 1)
    other = Training(tmp_path / "other", config(nodes, steps=20))
    other.wait_for(lambda: other.steps_done() >= 1)
    ray.kill(ray.get_actor(NAME))
    other.wait_for(lambda: len(standings()) == 2)
    assert "the fleet's broker was lost" in (other.run / "log.jsonl").read_text()
    victim.kill()
    other.wait_for(lambda: [len(standing.held) for standing in standings().values()] == [2])
    assert other.wait() == 0, other.text
    assert other.summary["steps"] == 20
    nodes.wait_until_clean(nodes.head)
