"""Training workers that join, leave and die, against one that trains alone: real processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import yaml
from ray.exceptions import RayTaskError
from sample_trajectories import make_trajectory
from training import SMALL

from agentrl.config.load import parse_config
from agentrl.config.run import RunConfig
from agentrl.runtime.cluster import joined_cluster
from agentrl.runtime.failures import ProcessLost
from agentrl.runtime.membership import Membership, ReplicaLost
from agentrl.runtime.parameters import ParameterStore
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.replicas import TIMEOUT
from agentrl.runtime.trainers import StepOrder, TrainerGroup
from agentrl.runtime.training import Snapshot
from agentrl.runtime.worker import Worker
from agentrl.train.checkpoint_folders import latest_checkpoint, read_header
from agentrl.types import Group

pytestmark = pytest.mark.slow
DEADLINE_S = 120
"""Only to catch hangs."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with joined_cluster(None):
        yield


def config(**train: Any) -> RunConfig:
    section = {**SMALL["train"], "microbatch_tokens": 48, "steps": 8, **train}
    text = yaml.safe_dump({**SMALL, "train": section})
    return parse_config(text, source="test.yaml")


def batch(step: int, *, size: int = 6) -> list[Group]:
    """Attempts of uneven length, so that shares are uneven as well."""
    return [
        Group(
            group_id=f"g{step}-{number}",
            task_id="task",
            size=size,
            trajectories=tuple(
                make_trajectory(f"g{step}-{number}", sibling, num_turns=1 + (sibling + step) % 3)
                for sibling in range(size)
            ),
        )
        for number in range(3)
    ]


class Bench:
    """Workers in the training role, all with the weights of the run's first moment."""

    def __init__(self, folder: Path, section: RunConfig) -> None:
        self._config = section
        self.checkpoints = folder / "checkpoints"
        self.store = ray.remote(ParameterStore).options(num_cpus=0).remote()
        self.group = TrainerGroup(section, self.store, self.checkpoints)
        self.replicas: dict[str, Any] = {}

    async def hire(self, *names: str) -> None:
        worker = ray.remote(Worker).options(num_cpus=0)
        for name in names:
            self.replicas[name] = worker.remote(self._config, self.store, (), 1)
        await asyncio.gather(*(self.replicas[name].become_training.remote(None) for name in names))

    async def train(self, step: int, *names: str) -> Any:
        replicas = {name: self.replicas[name] for name in names}
        async with asyncio.timeout(DEADLINE_S):
            return await self.group.train(batch(step), replicas)

    async def weights(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        snapshot: Snapshot = await self.replicas[name].snapshot.remote()
        return dict(snapshot.weights)

    def end(self) -> None:
        for actor in [*self.replicas.values(), self.store]:
            ray.kill(actor)


@pytest.fixture
async def bench(cluster: None, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, config())
    yield bench
    bench.end()


async def alone(tmp_path: Path, steps: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
    """The weights that one worker ends with."""
    single = Bench(tmp_path / "alone", config())
    await single.hire("only")
    single.group.found(single.replicas)
    for step in steps:
        await single.train(step, "only")
    weights = await single.weights("only")
    single.end()
    return weights


@ray.remote(num_cpus=0)
def late(state: Snapshot) -> Snapshot:
    time.sleep(2)
    return state


def assert_equal(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        np.testing.assert_allclose(got[name], tensor, rtol=1e-4, atol=1e-6, err_msg=name)


async def test_workers_that_join_and_leave_learn_what_one_alone_learns(
    bench: Bench, tmp_path: Path
) -> None:
    await bench.hire("a", "b", "c")
    bench.group.found({"a": bench.replicas["a"]})
    reports = [
        await bench.train(1, "a"),
        await bench.train(2, "a", "b"),
        await bench.train(3, "a", "b", "c"),
    ]
    await bench.group.leave("a")
    reports += [await bench.train(4, "b", "c"), await bench.train(5, "c")]
    assert [report.metrics["replicas"] for report in reports] == [1, 2, 3, 2, 1]
    assert len({report.num_samples for report in reports}) == 1
    wanted = await alone(tmp_path, [1, 2, 3, 4, 5])
    assert_equal(await bench.weights("c"), wanted)


async def test_who_saves_a_checkpoint_keeps_its_state_until_it_has(bench: Bench) -> None:
    """What was learned is so large that it reaches the worker after an order without arguments."""
    await bench.hire("a", "b")
    bench.group.found(bench.replicas)
    await bench.train(1, "a", "b")

    async def turn_away(name: str) -> None:
        await bench.group.leave(name)
        await bench.replicas[name].leave_role.remote()

    progress = RunProgress(step=1, learned={"much": "x" * 30_000_000})
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.group.checkpoint(progress))
        await asyncio.sleep(0)
        tasks.create_task(turn_away("a"))
        tasks.create_task(turn_away("b"))
    checkpoint = latest_checkpoint(bench.checkpoints)
    assert checkpoint is not None
    assert read_header(checkpoint).progress["step"] == 1


async def test_a_worker_killed_in_a_step_costs_no_more_than_doing_it_over(
    bench: Bench, tmp_path: Path
) -> None:
    await bench.hire("a", "b", "c")
    bench.group.found(bench.replicas)
    await bench.train(1, "a", "b", "c")
    training = asyncio.create_task(bench.train(2, "a", "b", "c"))
    await asyncio.sleep(0)
    ray.kill(bench.replicas["b"])
    report = await training
    assert report.metrics["replicas"] == 2
    assert (await bench.train(3, "a", "c")).metrics["replicas"] == 2
    wanted = await alone(tmp_path, [1, 2, 3])
    assert_equal(await bench.weights("a"), wanted)
    assert_equal(await bench.weights("c"), wanted)


class Watched:
    """A worker whose snapshots are seen by the test too."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.snapshot = self
        self.taken: asyncio.Queue[Any] = asyncio.Queue()

    def remote(self) -> Any:
        state = self._actor.snapshot.remote()
        self.taken.put_nowait(state)
        return state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)


async def test_the_only_one_with_the_state_may_die_once_it_has_handed_that_on(
    bench: Bench, tmp_path: Path
) -> None:
    await bench.hire("a", "b")
    first = bench.replicas["a"]
    watched = bench.replicas["a"] = Watched(first)
    bench.group.found({"a": watched})
    await bench.train(1, "a")
    training = asyncio.create_task(bench.train(2, "a", "b"))
    await (await watched.taken.get())
    ray.kill(first)
    bench.replicas["a"] = first
    report = await training
    assert report.metrics["replicas"] == 1
    assert_equal(await bench.weights("b"), await alone(tmp_path, [1, 2]))


async def test_who_dies_before_it_has_handed_the_state_on_takes_that_along(bench: Bench) -> None:
    await bench.hire("a", "b")
    bench.group.found({"a": bench.replicas["a"]})
    await bench.train(1, "a")
    ray.kill(bench.replicas["a"])
    with pytest.raises(ProcessLost):
        await bench.train(2, "a", "b")


async def test_the_state_rests_while_nobody_trains_and_can_be_saved_then(
    bench: Bench, tmp_path: Path
) -> None:
    await bench.hire("a", "b")
    bench.group.found({"a": bench.replicas["a"]})
    await bench.train(1, "a")
    await bench.group.leave("a")
    await bench.replicas["a"].leave_role.remote()
    ray.kill(bench.replicas["a"])
    assert await bench.train(2) is None, "all who were named for it have left"
    await bench.group.checkpoint(RunProgress(step=1))
    folder = latest_checkpoint(bench.checkpoints)
    assert folder is not None
    assert read_header(folder).trainer["steps_done"] == 1
    await bench.train(2, "b")
    assert_equal(await bench.weights("b"), await alone(tmp_path, [1, 2]))


async def test_what_is_called_off_while_the_state_is_still_on_its_way_waits_for_nobody(
    bench: Bench,
) -> None:
    await bench.hire("a")
    nowhere = Membership(rank=1, size=2, host="127.0.0.1", port=1)
    state = late.remote(bench.replicas["a"].snapshot.remote())
    order = StepOrder(round=1, membership=nowhere, state=[state])
    computing = bench.replicas["a"].gradients.remote(order, [ray.put(batch(1))])
    await bench.replicas["a"].call_off.remote(1)
    async with asyncio.timeout(TIMEOUT.total_seconds() / 2):
        with pytest.raises(RayTaskError) as lost:
            await computing
    assert isinstance(lost.value.cause, ReplicaLost)


async def test_one_that_fails_is_told_of_though_the_others_wait_for_it(bench: Bench) -> None:
    await bench.hire("a", "b")
    bench.group.found(bench.replicas)
    await bench.replicas["b"].leave_role.remote()
    async with asyncio.timeout(TIMEOUT.total_seconds() / 2):
        with pytest.raises(RayTaskError) as failed:
            await bench.train(1, "a", "b")
    assert isinstance(failed.value.cause, AssertionError)


async def test_workers_that_come_back_may_meet_in_another_order(bench: Bench) -> None:
    await bench.hire("a", "b")
    bench.group.found(bench.replicas)
    await bench.train(1, "a", "b")
    for name in ("b", "a"):
        await bench.group.leave(name)
        await bench.replicas[name].become_training.remote(None)
    assert (await bench.train(2, "b", "a")).metrics["replicas"] == 2
    assert_equal(await bench.weights("a"), await bench.weights("b"))


async def test_the_loss_of_the_last_one_is_told(bench: Bench) -> None:
    await bench.hire("a", "b")
    bench.group.found(bench.replicas)
    await bench.train(1, "a", "b")
    for actor in bench.replicas.values():
        ray.kill(actor)
    with pytest.raises(ProcessLost):
        await bench.train(2, "a", "b")
    bench.replicas.clear()
