"""Many boxes made, used and deleted: how fast, and what this process and the engine hold after."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from docker.api import APIClient

from sandboxes import BackendName, SandboxBackend, SandboxSpec, make_backend
from sandboxes.engine.backend import DockerBackend

AT_ONCE = 16
SPEC = SandboxSpec(files={"input.txt": "content\n"})


class Held(NamedTuple):
    descriptors: int
    threads: int
    rss_mib: float
    containers: int

    @classmethod
    def now(cls, backend: SandboxBackend) -> Held:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        containers = 0
        if isinstance(backend, DockerBackend):
            with closing(APIClient(base_url=backend.engine.address.url, version="auto")) as client:
                containers = len(client.containers(all=True, filters={"label": "agentrl"}))
        return cls(
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            rss_mib=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            containers=containers,
        )


async def churn_figures(name: BackendName, num_boxes: int) -> dict[str, float]:
    """Growth over the churn; threads and buffers have their sizes from a shorter one before."""
    backend = await asyncio.to_thread(make_backend, name, run_id=f"bench-{os.getpid()}")
    await _churn(backend, 2 * AT_ONCE)
    before = await asyncio.to_thread(Held.now, backend)
    started = time.perf_counter()
    await _churn(backend, num_boxes)
    seconds = time.perf_counter() - started
    after = await asyncio.to_thread(Held.now, backend)
    await backend.close()
    print(f"{name}: {num_boxes} boxes in {seconds:.1f} s; {before}; {after}")
    return {
        f"{name}_churn_boxes_per_s": num_boxes / seconds,
        f"{name}_churn_descriptors": after.descriptors - before.descriptors,
        f"{name}_churn_threads": after.threads - before.threads,
        f"{name}_churn_rss_mib": after.rss_mib - before.rss_mib,
        f"{name}_churn_containers": after.containers - before.containers,
    }


async def _churn(backend: SandboxBackend, num_boxes: int) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with places, await backend.create(SPEC) as box:
            await box.exec("cat input.txt > copy.txt")

    await asyncio.gather(*(one() for _ in range(num_boxes)))
