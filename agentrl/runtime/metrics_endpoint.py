"""The address where Prometheus finds a run, when the run file names a port.

It answers in the driver's own event loop, so a driver that is stuck does not answer. Whoever can
reach the port can read it; by default that is this machine alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from agentrl.config.sections import MetricsSection
from agentrl.runtime.metrics import RunMetrics, Scrape

log = structlog.get_logger(__name__)

PATH = "/metrics"


class MetricsEndpoint:
    """What it serves beside the counters is asked of `now`, which a launch sets."""

    def __init__(self, metrics: RunMetrics) -> None:
        self.metrics = metrics
        self.now: Callable[[], Awaitable[Scrape]] | None = None

    async def answer(self, request: web.Request) -> web.Response:
        body = generate_latest(self.metrics.registry)
        if self.now is not None:
            scrape = CollectorRegistry()
            scrape.register(await self.now())
            body += generate_latest(scrape)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


@asynccontextmanager
async def serving_metrics(
    section: MetricsSection, metrics: RunMetrics
) -> AsyncIterator[MetricsEndpoint]:
    """Serve while the block lasts, if there is a port. Raises ValueError when it is taken."""
    endpoint = MetricsEndpoint(metrics)
    if section.port is None:
        yield endpoint
        return
    app = web.Application()
    app.router.add_get(PATH, endpoint.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, section.host, section.port).start()
        except OSError as error:
            raise ValueError(
                f"runtime.metrics: nothing can listen on {section.host}:{section.port} "
                f"({error.strerror}); choose another port or host, or leave the section out"
            ) from error
        host, port = runner.addresses[0][:2]
        log.info("metrics are served", address=f"http://{host}:{port}{PATH}")
        yield endpoint
    finally:
        await runner.cleanup()
