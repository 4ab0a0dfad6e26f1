"""One training run from its configuration to its summary, through as many launches as it takes.

When a process is lost whose state only a checkpoint has, the run is launched anew and goes on from
the newest checkpoint, as long as each launch gets further than the one before.
"""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass

import structlog
from ray.exceptions import RayActorError, RayTaskError

from agentrl.config.run import RunConfig
from agentrl.record.disk import DiskFailed
from agentrl.record.layout import RunLayout
from agentrl.runtime.cluster import joined_cluster
from agentrl.runtime.display import Display, Summary
from agentrl.runtime.failures import ProcessLost, RunFailed, in_short
from agentrl.runtime.launch import Launch
from agentrl.runtime.metrics import RunMetrics
from agentrl.runtime.metrics_endpoint import MetricsEndpoint, serving_metrics

log = structlog.get_logger(__name__)

MAX_FRUITLESS_LAUNCHES = 3
"""Launches in a row that may end by a lost process without a step done."""


async def train(
    config: RunConfig, layout: RunLayout, display: Display, stop: asyncio.Event
) -> Summary:
    """Run until all steps are done, or until `stop` is set and what there is has been saved.

    Goes on from the newest checkpoint in the run folder when there is one.
    """
    fruitless, furthest = 0, 0
    metrics = RunMetrics()
    async with serving_metrics(config.runtime.metrics, metrics) as endpoint:
        while True:
            ended = await _launch(config, layout, display, stop, endpoint)
            if isinstance(ended, Summary):
                return ended
            fruitless = 0 if ended.step > furthest else fruitless + 1
            furthest = max(furthest, ended.step)
            if fruitless >= MAX_FRUITLESS_LAUNCHES:
                raise ProcessLost(
                    f"{fruitless} launches in a row lost what only a checkpoint has before they had "
                    f"done a step; the last one: {ended.reason}"
                )
            metrics.restarted("run")
            log.warning("going on from the newest checkpoint", reason=ended.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A launch that ended with a lost process, wherever its loss was noticed first."""

    reason: str
    step: int


async def _launch(
    config: RunConfig,
    layout: RunLayout,
    display: Display,
    stop: asyncio.Event,
    endpoint: MetricsEndpoint,
) -> Summary | Lost:
    with joined_cluster(config.runtime.ray_address):
        launch = Launch(config, layout, display, stop, endpoint)
        try:
            return await launch.run()
        except (ProcessLost, RayActorError, RayTaskError) as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            if isinstance(cause, ProcessLost | RayActorError):
                # no handle of this cluster may outlive it: Ray crashes when one is let go later
                traceback.clear_frames(error.__traceback__)
                return Lost(reason=in_short(cause), step=launch.progress.step)
            if isinstance(cause, DiskFailed):
                raise RunFailed(str(cause)) from error
            if isinstance(cause, ValueError):
                # what a person can mend is told as plainly as if it had been found here; the log
                # says where that was, since nobody can tell it from a fault of ours for sure
                log.info("an error ended the run", traceback=str(error))
                raise ValueError(str(cause)) from error
            raise
        finally:
            del launch
