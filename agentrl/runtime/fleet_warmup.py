"""Supervised warm-up by a run's workers: of the policy by many together, of the judge by one.

Nobody is replaced here. A worker that dies is `ProcessLost` for whoever started the run, and the
warm-up begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from agentrl.registry import EnvRef
from agentrl.runtime.display import WarmupProgress
from agentrl.runtime.failures import ProcessLost, in_short
from agentrl.runtime.link import Actor
from agentrl.runtime.membership import Membership
from agentrl.runtime.trainers import is_of_others


async def warm_up(
    replicas: Sequence[Actor], env: EnvRef, on_progress: Callable[[WarmupProgress], None]
) -> None:
    """The workers train on demonstrations, and end with the same weights."""
    size = len(replicas)
    try:
        await asyncio.gather(*(actor.become_training.remote(None) for actor in replicas))
        meeting = await replicas[0].host_meeting.remote(size)
        async with asyncio.TaskGroup() as tasks:
            followed = []
            for rank, actor in enumerate(replicas):
                place = Membership(rank=rank, size=size, host=meeting.host, port=meeting.port)
                steps = actor.warm_up.options(num_returns="streaming").remote(place, env)
                shown = on_progress if rank == 0 else None
                followed.append(tasks.create_task(follow(steps, shown)))
    except* RayActorError as errors:
        raise ProcessLost("a worker was lost during warm-up") from errors
    if not all(task.result() for task in followed):
        raise ProcessLost("the replicas lost each other during warm-up")


async def teach_judge(
    worker: Actor, env: EnvRef, folder: Path, on_progress: Callable[[WarmupProgress], None]
) -> None:
    """A worker learns from the environment's rule, and leaves the judge's weights in `folder`."""
    teaching = worker.teach_judge.options(num_returns="streaming").remote(folder, env)
    try:
        async for progress in teaching:
            on_progress(await progress)
    except RayActorError as error:
        raise ProcessLost(f"the judge was lost in its warm-up: {in_short(error)}") from error


async def follow(steps: Any, on_progress: Callable[[WarmupProgress], None] | None) -> bool:
    """One replica's warm-up to its end; False when that was another's loss, which says more."""
    try:
        async for progress in steps:
            step = await progress
            if on_progress is not None:
                on_progress(step)
    except RayTaskError as error:
        if not is_of_others(error):
            raise
        return False
    return True
