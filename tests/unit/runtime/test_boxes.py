"""A box of the environment is tried out before anything waits for one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.config.sections import SandboxSection
from agentrl.runtime.boxes import first_spec, open_pool, try_out
from envs.calculator import Calculator
from envs.trail import Trail
from sandboxes import SandboxPool, SandboxSpec

SECTION = SandboxSection(backend="bubblewrap", pool_size=0)


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    async with open_pool(SECTION, Trail, run_id="test") as pool:
        assert pool is not None
        yield pool


async def test_boxes_that_cannot_be_made_are_an_error(pool: SandboxPool) -> None:
    too_big = SandboxSpec(disk_bytes=4096, files={"big": "x" * 100_000})
    with pytest.raises(OSError, match="No space left"):
        await try_out(pool, too_big)


async def test_the_box_that_was_tried_is_not_kept(pool: SandboxPool) -> None:
    spec = first_spec(Trail)
    assert spec is not None
    await try_out(pool, spec)
    assert (pool.metrics().leased, pool.metrics().created) == (0, 1)


async def test_without_boxes_there_is_no_pool() -> None:
    assert first_spec(Calculator) is None
    async with open_pool(SECTION, Calculator, run_id="test") as pool:
        assert pool is None
