"""Two runs that take turns on the slots of one cluster: real nodes, real processes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError
from ray_nodes import DEADLINE_S, Nodes, ray_nodes
from training import PATIENT, SMALL, Training, whole_lines

from agentrl.runtime.broker import GRACE_S, NAME
from agentrl.runtime.cluster import joined_cluster
from scheduler.slices import Account

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(1500)]
SLICE_S = 5.0
NUM_SLOTS = 2
WINDOW_S = 600.0
"""Slot-seconds."""


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with ray_nodes(head_cpus=NUM_SLOTS) as nodes, joined_cluster(nodes.address):
        yield nodes


def config(nodes: Nodes, *, steps: int, weight: float = 1.0, **runtime: Any) -> dict[str, Any]:
    """Needs both slots to work: one trains, one samples."""
    changed = copy.deepcopy(SMALL)
    share = {"min_slice_s": SLICE_S, "weight": weight}
    changed["runtime"] |= {"ray_address": nodes.address, "share": share, **PATIENT, **runtime}
    changed["train"] |= {"steps": steps}
    changed["checkpoint"] = {"every_steps": 0}
    return changed


def accounts() -> dict[str, Account]:
    """By run, as the broker has it; nothing while there is no broker."""
    try:
        broker = ray.get_actor(NAME)
        found: list[Account] = ray.get(broker.accounts.remote(), timeout=DEADLINE_S)
    except (ValueError, RayActorError):
        return {}
    return {account.tenant.job: account for account in found}


def num_given_back(training: Training) -> int:
    return (training.run / "log.jsonl").read_text().count("a slot was given back")


def grants(training: Training) -> list[dict[str, Any]]:
    lines = whole_lines(training.run / "log.jsonl")
    return [line for line in lines if line["event"] == "a slot of the fleet was granted"]


def wait_for(what: Callable[[], bool], *runs: Training) -> None:
    deadline = time.monotonic() + 2 * DEADLINE_S
    while not what():
        for run in runs:
            assert run.process.poll() is None, f"a run ended first:\n{run.text}"
        assert time.monotonic() < deadline, accounts()
        time.sleep(0.5)


def test_two_runs_take_turns_and_both_reach_their_last_step(nodes: Nodes, tmp_path: Path) -> None:
    steps = 150  # some slices of each
    runs = [Training(tmp_path / name, config(nodes, steps=steps)) for name in ("a", "b")]
    for run in runs:
        run.wait_for(lambda: len(accounts()) == 2)
    bound_s = NUM_SLOTS * (SLICE_S + GRACE_S)
    started, together_s = time.monotonic(), 0.0
    while all(run.process.poll() is None for run in runs):
        seen = accounts()
        assert time.monotonic() - started < 1200
        held = [slot for account in seen.values() for slot in account.held]
        assert len(held) == len(set(held)) <= NUM_SLOTS
        if len(seen) == 2:
            together_s = time.monotonic() - started
        if all(run.steps_done() for run in runs):
            assert all(abs(account.deficit_s) <= bound_s for account in seen.values()), seen
        time.sleep(0.5)
    for run in runs:
        assert run.wait() == 0, run.text
        assert run.summary["steps"] == steps
        trained = [task for tasks in run.trained().values() for task in tasks]
        assert len(trained) == len(set(trained)) >= 2 * steps
    assert together_s > SLICE_S
    assert min(num_given_back(run) for run in runs) >= 2
    nodes.wait_until_clean(nodes.head)


def test_a_run_of_twice_the_weight_uses_twice_as_much(nodes: Nodes, tmp_path: Path) -> None:
    """They need both slots each, so that shares are shares of time; a turn lasts as long as its
    workers' start and a slice, and the window has many of them."""
    heavy = Training(tmp_path / "heavy", config(nodes, steps=10**6, weight=2.0))
    light = Training(tmp_path / "light", config(nodes, steps=10**6))
    wait_for(lambda: heavy.steps_done() >= 1 and light.steps_done() >= 1, heavy, light)

    def used() -> dict[float, float]:
        return {s.tenant.weight: s.used_s for s in accounts().values()}

    before = used()
    wait_for(lambda: sum(used().values()) - sum(before.values()) >= WINDOW_S, heavy, light)
    by_weight = {weight: used_s - before[weight] for weight, used_s in used().items()}
    assert 0.58 < by_weight[2.0] / sum(by_weight.values()) < 0.75, by_weight
    assert min(num_given_back(run) for run in (heavy, light)) >= 6


def test_a_slot_goes_back_to_the_run_that_was_there(nodes: Nodes, tmp_path: Path) -> None:
    """Two runs that can work with one slot and use all three: one goes back and forth."""
    nodes.add(1)
    changes = {"layout": "colocated", "rollout_workers": 2}
    runs = [Training(tmp_path / n, config(nodes, steps=10**6, **changes)) for n in ("a", "b")]
    wait_for(lambda: all(len(grants(run)) >= NUM_SLOTS + 4 for run in runs), *runs)
    for run in runs:
        had: set[str] = set()
        for grant in grants(run):
            assert grant["is_warm"] == (grant["slot"] in had)
            had.add(grant["slot"])
        assert sum(grant["is_warm"] for grant in grants(run)) >= 3


def test_a_killed_run_frees_its_slots_and_a_dead_broker_is_replaced(
    nodes: Nodes, tmp_path: Path
) -> None:
    victim = Training(tmp_path / "victim", config(nodes, steps=1000))
    victim.wait_for(lambda: victim.steps_done() >= 1)
    other = Training(tmp_path / "other", config(nodes, steps=200))
    other.wait_for(lambda: other.steps_done() >= 1)
    ray.kill(ray.get_actor(NAME))
    other.wait_for(lambda: len(accounts()) == 2)
    assert "the fleet's broker was lost" in (other.run / "log.jsonl").read_text()
    victim.kill()
    other.wait_for(lambda: [len(account.held) for account in accounts().values()] == [2])
    assert other.wait() == 0, other.text
    assert other.summary["steps"] == 200
    nodes.wait_until_clean(nodes.head)
