"""Runs on a Ray cluster of several nodes, which leave and join: real nodes, real processes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray._private.internal_api import node_stats
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from ray_nodes import DEADLINE_S, Nodes, ray_nodes
from training import PATIENT, SMALL, Training

from agentrl.runtime.cluster import joined_cluster, near_the_driver
from agentrl.runtime.parameters import ParameterStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with ray_nodes(head_cpus=1) as nodes:
        yield nodes


def config(nodes: Nodes, *, steps: int, **runtime: Any) -> dict[str, Any]:
    changed = copy.deepcopy(SMALL)
    changed["runtime"] |= {"ray_address": nodes.address, **PATIENT, **runtime}
    changed["train"] |= {"steps": steps}
    return changed


@pytest.mark.soak
def test_a_run_spreads_over_nodes_and_leaves_the_cluster_clean(
    nodes: Nodes, tmp_path: Path
) -> None:
    second = nodes.add(1)
    training = Training(tmp_path, config(nodes, steps=3, runners=2))
    training.wait_for(lambda: bool(nodes.processes(second, "Worker")))
    assert nodes.processes(nodes.head, "Worker")
    training.wait_for(lambda: all(nodes.processes(n, "Runner") for n in (nodes.head, second)))
    assert training.wait() == 0, training.text
    assert training.summary["steps"] == 3
    assert all(
        line["train/logprob_diff_max"] < 1e-4 for line in training.metrics() if "train_s" in line
    )
    nodes.wait_until_clean(nodes.head, second)
    again = Training(tmp_path / "again", config(nodes, steps=1))
    assert again.wait() == 0, again.text


@pytest.mark.soak
def test_a_run_goes_on_when_a_node_is_lost_and_another_joins(nodes: Nodes, tmp_path: Path) -> None:
    second = nodes.add(1)
    training = Training(tmp_path, config(nodes, steps=12))
    training.wait_for(lambda: training.steps_done() >= 2)
    assert nodes.processes(second, "Worker")
    nodes.kill(second)
    training.wait_for(lambda: "a worker is gone" in training.text)
    third = nodes.add(1)
    training.wait_for(lambda: bool(nodes.processes(third, "Worker")))
    assert training.wait() == 0, training.text
    assert training.summary["steps"] == 12
    trained = [task for tasks in training.trained().values() for task in tasks]
    assert len(trained) == len(set(trained)) >= 24  # more: groups that lost members with the node
    nodes.wait_until_clean(nodes.head, third)


@pytest.mark.soak
def test_a_run_that_finds_no_place_says_what_it_asked_for(nodes: Nodes, tmp_path: Path) -> None:
    training = Training(tmp_path, config(nodes, steps=1, start_timeout_s=15))
    assert training.wait() == 1
    assert "2 with num_cpus 1" in training.text
    assert "'CPU': 1.0" in training.text


def test_an_address_without_a_cluster_is_told(tmp_path: Path) -> None:
    changed = {**SMALL, "runtime": {**SMALL["runtime"], "ray_address": "127.0.0.1:1"}}
    training = Training(tmp_path, changed)
    assert training.wait() == 2
    assert "no Ray cluster could be joined" in training.text


NUM_WEIGHTS = 2_000_000
WEIGHTS_BYTES = 4 * NUM_WEIGHTS


@ray.remote(num_cpus=0)
class Puller:
    """Takes versions from the store as a worker does."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def pull(self, version: int) -> float:
        published = await self._store.pull.remote(version)
        weights = await published.refs[0]
        return float(weights["w"][0])


@ray.remote(num_cpus=0)
class Publisher:
    def weights(self, version: int) -> dict[str, np.ndarray[Any, Any]]:
        return {"w": np.full(NUM_WEIGHTS, version, np.float32)}


def bytes_by_node() -> dict[str, int]:
    """Of the object store, as each raylet counts it."""
    return {
        node["NodeID"]: node_stats(
            node_manager_address=node["NodeManagerAddress"],
            node_manager_port=node["NodeManagerPort"],
            include_memory_info=False,
        ).store_stats.object_store_bytes_used
        for node in ray.nodes()
        if node["Alive"]
    }


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, bytes_by_node()
        time.sleep(0.2)


@pytest.mark.soak
def test_weights_reach_a_node_once_and_old_ones_are_freed(nodes: Nodes) -> None:
    second = nodes.add(1)
    with joined_cluster(nodes.address):
        there = NodeAffinitySchedulingStrategy(second.node_id, soft=False)
        on_head = ray.remote(ParameterStore).options(
            num_cpus=0, scheduling_strategy=near_the_driver()
        )
        store = on_head.remote(keep=2)
        publisher = Publisher.options(scheduling_strategy=there).remote()  # type: ignore[attr-defined]
        pullers = [Puller.options(scheduling_strategy=there).remote(store) for _ in range(2)]  # type: ignore[attr-defined]
        local = Puller.options(scheduling_strategy=near_the_driver()).remote(store)  # type: ignore[attr-defined]
        for version in range(6):
            weights = publisher.weights.remote(version)
            ray.get(store.publish.remote(version, [weights]), timeout=DEADLINE_S)
            del weights
            pulled = [puller.pull.remote(version) for puller in [*pullers, local]]
            assert ray.get(pulled, timeout=DEADLINE_S) == [version] * 3
        wait_for(lambda: max(bytes_by_node().values()) < 3 * WEIGHTS_BYTES)
        assert min(bytes_by_node().values()) >= WEIGHTS_BYTES
        with pytest.raises(LookupError, match="held: 4, 5"):
            ray.get(store.pull.remote(0), timeout=DEADLINE_S)
        nodes.kill(second)
        assert ray.get(local.pull.remote(5), timeout=DEADLINE_S) == 5
