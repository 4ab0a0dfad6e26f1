"""The pool against boxes in memory: counts, order, failures and cancellation at any point."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from sandboxes.pool import SandboxPool
from sandboxes.sandbox import Sandbox, SandboxBackend, SandboxError
from sandboxes.spec import SandboxSpec

SPEC = SandboxSpec(files={"a": "1"})
OTHER = replace(SPEC, image="other")


class MemoryBox:
    def __init__(self, backend: MemoryBackend, spec: SandboxSpec, number: int) -> None:
        self.backend = backend
        self.spec = spec
        self.sandbox_id = str(number)
        self.files = dict(spec.files)
        self.is_alive = True

    async def alive(self) -> bool:
        await asyncio.sleep(0)
        return self.is_alive

    async def upload(self, files: Mapping[str, str | bytes] | Path) -> None:
        await asyncio.sleep(0)
        assert not isinstance(files, Path)
        self.files.update(files)

    async def close(self) -> None:
        await asyncio.sleep(self.backend.delete_s)
        self.backend.open.discard(self.sandbox_id)


class MemoryBackend:
    """Makes boxes in memory; `open` holds those not yet deleted, `peak` their largest number."""

    name = "memory"

    def __init__(self, *, create_s: float = 0.0, delete_s: float = 0.0) -> None:
        self.create_s = create_s
        self.delete_s = delete_s
        self.numbers = itertools.count()
        self.open: set[str] = set()
        self.peak = 0
        self.num_creating = self.peak_creating = 0
        self.made: list[MemoryBox] = []
        self.failures: list[Exception] = []

    async def prepare(self, spec: SandboxSpec) -> None: ...

    async def create(self, spec: SandboxSpec) -> MemoryBox:
        self.num_creating += 1
        self.peak_creating = max(self.peak_creating, self.num_creating)
        try:
            await asyncio.sleep(self.create_s)
            if self.failures:
                raise self.failures.pop()
        finally:
            self.num_creating -= 1
        box = MemoryBox(self, spec, next(self.numbers))
        self.open.add(box.sandbox_id)
        self.made.append(box)
        self.peak = max(self.peak, len(self.open))
        return box


def make(backend: MemoryBackend, **options: float) -> SandboxPool:
    return SandboxPool(cast(SandboxBackend, backend), **options)  # type: ignore[arg-type]


async def settle(pool: SandboxPool) -> None:
    while pool._tasks:
        await asyncio.wait(pool._tasks)


async def test_a_box_serves_one_rollout() -> None:
    backend = MemoryBackend()
    pool = make(backend)
    pool.prewarm([SPEC] * 2)
    await settle(pool)
    seen = set()
    for _ in range(6):
        async with pool.lease(SPEC) as box:
            assert box.sandbox_id not in seen
            seen.add(box.sandbox_id)
        await settle(pool)
    await pool.aclose()
    assert backend.open == set()


async def test_ready_boxes_get_their_files_at_the_lease() -> None:
    backend = MemoryBackend()
    pool = make(backend)
    pool.prewarm([SPEC])
    await settle(pool)
    assert backend.made[0].files == {}
    box = cast(MemoryBox, await pool.acquire(replace(SPEC, files={"b": "2"})))
    assert box.sandbox_id == backend.made[0].sandbox_id
    assert box.files == {"b": "2"}
    assert pool.metrics().warm_hits == 1
    await pool.aclose()


async def test_boxes_of_another_shape_are_not_handed_out() -> None:
    backend = MemoryBackend()
    pool = make(backend)
    pool.prewarm([OTHER])
    await settle(pool)
    box = await pool.acquire(SPEC)
    assert box.spec.image == SPEC.image
    await pool.aclose()


async def test_prewarming_follows_the_upcoming_specs_up_to_the_size() -> None:
    backend = MemoryBackend()
    pool = make(backend, size=3)
    pool.prewarm([SPEC, OTHER, OTHER, SPEC])
    await settle(pool)
    assert sorted(box.spec.image for box in backend.made) == ["agentrl-base", "other", "other"]
    pool.prewarm([SPEC] * 3)
    await settle(pool)
    assert pool.metrics().ready == 3
    assert len(backend.open) == 3
    await pool.aclose()


async def test_creation_is_bounded() -> None:
    backend = MemoryBackend(create_s=0.001)
    pool = make(backend, max_creating=2)
    await pool.acquire_many([SPEC] * 9)
    assert backend.peak_creating == 2
    await pool.aclose()


async def test_ready_boxes_make_room_for_leases() -> None:
    backend = MemoryBackend(delete_s=0.001)
    pool = make(backend, size=4, max_open=4)
    pool.prewarm([OTHER] * 4)
    await settle(pool)
    boxes = await asyncio.wait_for(pool.acquire_many([SPEC] * 4), 10)
    assert backend.peak <= 4
    for box in boxes:
        pool.release(box)
    await pool.aclose()
    assert backend.open == set()


async def test_groups_do_not_deadlock() -> None:
    backend = MemoryBackend(create_s=0.001)
    pool = make(backend, max_open=5)

    async def group() -> None:
        boxes = await pool.acquire_many([SPEC] * 3)
        await asyncio.sleep(0.001)
        for box in boxes:
            pool.release(box)

    await asyncio.wait_for(asyncio.gather(*(group() for _ in range(12))), 20)
    await pool.aclose()
    assert backend.peak <= 5
    assert backend.open == set()


async def test_a_dead_ready_box_is_replaced() -> None:
    backend = MemoryBackend()
    pool = make(backend)
    pool.prewarm([SPEC])
    await settle(pool)
    backend.made[0].is_alive = False
    box = await pool.acquire(SPEC)
    assert box.sandbox_id != backend.made[0].sandbox_id
    assert pool.metrics().died_ready == 1
    await pool.aclose()
    assert backend.open == set()


async def test_a_ready_box_grows_too_old() -> None:
    backend = MemoryBackend()
    now = [0.0]
    pool = SandboxPool(cast(SandboxBackend, backend), max_ready_s=60, clock=lambda: now[0])
    pool.prewarm([SPEC])
    await settle(pool)
    now[0] = 61
    box = await pool.acquire(SPEC)
    assert box.sandbox_id != backend.made[0].sandbox_id
    await pool.aclose()


async def test_one_failure_fails_the_group_and_leaks_nothing() -> None:
    backend = MemoryBackend()
    backend.failures.append(SandboxError("no room in the inn"))
    pool = make(backend, max_open=4)
    with pytest.raises(SandboxError, match="no room in the inn"):
        await pool.acquire_many([SPEC] * 4)
    await settle(pool)
    assert backend.open == set()
    assert (pool.metrics().leased, pool.metrics().create_failures) == (0, 1)
    assert len(await pool.acquire_many([SPEC] * 4)) == 4
    await pool.aclose()


async def test_failing_to_prewarm_is_not_repeated_for_ever() -> None:
    backend = MemoryBackend()
    backend.failures += [SandboxError("broken image")] * 5
    pool = make(backend)
    pool.prewarm([SPEC])
    await settle(pool)
    assert len(backend.failures) == 4
    with pytest.raises(SandboxError, match="broken image"):
        await pool.acquire(SPEC)
    await pool.aclose()


async def test_waiting_ends_with_a_clear_error() -> None:
    backend = MemoryBackend()
    pool = make(backend, max_open=1, acquire_timeout_s=0.02)
    held = await pool.acquire(SPEC)
    with pytest.raises(SandboxError, match="1 are leased"):
        await pool.acquire(SPEC)
    pool.release(held)
    await settle(pool)
    pool.release(await pool.acquire(SPEC))
    await pool.aclose()


async def test_a_closed_pool_gives_nothing() -> None:
    pool = make(MemoryBackend())
    async with pool.lease(SPEC):
        await pool.aclose()
    with pytest.raises(SandboxError, match="closed"):
        await pool.acquire(SPEC)


@pytest.mark.parametrize("seed", range(30))
async def test_cancellation_anywhere_leaks_nothing(seed: int) -> None:
    rng = random.Random(seed)
    backend = MemoryBackend(create_s=0.002, delete_s=0.001)
    pool = make(backend, size=3, max_open=6, max_creating=2)
    pool.prewarm([SPEC, OTHER, OTHER])

    async def rollout() -> None:
        boxes = await pool.acquire_many([rng.choice([SPEC, OTHER])] * rng.randint(1, 4))
        try:
            await asyncio.sleep(rng.random() * 0.004)
        finally:
            for box in boxes:
                pool.release(box)

    rollouts = [asyncio.create_task(rollout()) for _ in range(12)]
    for task in rollouts:
        await asyncio.sleep(rng.random() * 0.003)
        if rng.random() < 0.5:
            task.cancel()
    await asyncio.wait_for(asyncio.gather(*rollouts, return_exceptions=True), 20)
    assert len(await asyncio.wait_for(pool.acquire_many([SPEC] * 6), 20)) == 6
    assert backend.peak <= 6
    await pool.aclose()
    assert backend.open == set()
    assert pool.metrics().delete_failures == 0


def test_a_sandbox_is_what_the_fake_is() -> None:
    """The fake has what the pool uses of the protocol."""
    assert {"alive", "upload", "close"} <= vars(Sandbox).keys() & vars(MemoryBox).keys()
