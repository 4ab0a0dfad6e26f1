"""The warm pool of boxes of one process, as the run file wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrl.config.sections import SandboxSection
from agentrl.env import Env, tasks_of
from sandboxes import SandboxPool, SandboxSpec, make_backend


@asynccontextmanager
async def open_pool(
    section: SandboxSection, env_class: type[Env], *, run_id: str
) -> AsyncIterator[SandboxPool | None]:
    """None when the environment wants no box. Raises BackendUnavailable, which says what to do."""
    if first_spec(env_class) is None:
        yield None
        return
    backend = await asyncio.to_thread(
        make_backend, section.backend, require=section.require, run_id=run_id
    )
    pool = SandboxPool(
        backend,
        size=section.pool_size,
        max_open=section.max_open,
        max_creating=section.max_creating,
    )
    try:
        yield pool
    finally:
        await pool.aclose()
        await backend.close()


async def try_out(pool: SandboxPool, spec: SandboxSpec) -> None:
    """Raises what is wrong with a box, before attempt after attempt would wait for one in vain."""
    pool.release(await pool.acquire(spec))


def first_spec(env_class: type[Env]) -> SandboxSpec | None:
    """The box of the first task; those of the others are usually like it but for their files."""
    task = next(tasks_of(env_class, "train"), None)
    if task is None:
        raise ValueError(f"{env_class.__name__} has no tasks in split 'train'")
    return env_class.sandbox_for(task)
