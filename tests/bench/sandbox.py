"""A box's call against the engine's own exec, and how quickly a warm box is had.

Both sides run in one process and take turns: calls of `true` in a Docker box through its boxd,
and `exec` of `true` in the same container through the `docker` SDK, each sixteen at a time. The
same calls are made in a bubblewrap box. Needs a Docker engine with the base image:

    docker/start-engine.sh && docker/build-base.sh
    python tests/bench/sandbox.py [--churn 512] [--swe-rex] [--runtime runsc]

With `--churn N`, N boxes of each backend are made, used and deleted, and what must stay flat in
this process and the engine is measured before and after. With `--swe-rex`, swe-rex is installed
into a virtual environment of its own and makes the same calls, its server in a container without
limits. With `--runtime NAME`, boxes of that OCI runtime and of the engine's own take turns.
The last line is one JSON object:
    call_p50_ms             one call after another in a Docker box
    exec_ratio              calls a second over the engine's execs a second, median of the rounds
    warm_acquire_ms         a ready Docker box with its files, from the pool
    leaked                  boxes of this run left in the engine at the end
    bubblewrap_*            the same for bubblewrap, and how long a box takes to make
    *_churn_*               growth over the churn: descriptors, threads, MiB of memory, boxes left
    runtime_*, own_*        a box of `--runtime` and one of the engine's own runtime
    swe_rex_*               one call after another, and sixteen at a time
    *cpu*                   what a bubblewrap box costs in CPU time: see box_cpu.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from box_churn import churn_figures
from box_cpu import cpu_figures
from docker.api import APIClient
from swe_rex import swe_rex_figures

from sandboxes import Sandbox, SandboxPool, SandboxSpec, make_backend
from sandboxes.engine.backend import DockerBackend
from sandboxes.engine.connection import find_engine

ROUNDS = 5
AT_ONCE = 16
CALLS_A_ROUND = 400
EXECS_A_ROUND = 32
WARM_BOXES = 8
SPEC = SandboxSpec(files={f"file-{n}.txt": "content\n" for n in range(8)})


async def call_p50_ms(box: Sandbox, num: int = 300) -> float:
    took = []
    for _ in range(num):
        started = time.perf_counter()
        await box.exec(["true"])
        took.append(time.perf_counter() - started)
    return statistics.median(took) * 1000


async def calls_a_second(box: Sandbox) -> float:
    async def chain() -> None:
        for _ in range(CALLS_A_ROUND // AT_ONCE):
            await box.exec(["true"])

    started = time.perf_counter()
    await asyncio.gather(*(chain() for _ in range(AT_ONCE)))
    return CALLS_A_ROUND / (time.perf_counter() - started)


def execs_a_second(url: str, container: str) -> float:
    """The engine's own way, with a client a thread."""

    def chain(client: APIClient) -> None:
        for _ in range(EXECS_A_ROUND // AT_ONCE):
            client.exec_start(client.exec_create(container, ["true"]))

    clients = [APIClient(base_url=url, version="auto") for _ in range(AT_ONCE)]
    started = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(chain, clients))
    rate = EXECS_A_ROUND / (time.perf_counter() - started)
    for client in clients:
        client.close()
    return rate


async def warm_acquire_ms(pool: SandboxPool) -> float:
    took = []
    pool.prewarm([SPEC] * WARM_BOXES)
    for _ in range(ROUNDS * 2):
        while pool.metrics().ready < WARM_BOXES:  # noqa: ASYNC110  # a pool sets no event
            await asyncio.sleep(0.05)
        started = time.perf_counter()
        box = await pool.acquire(SPEC)
        took.append(time.perf_counter() - started)
        pool.release(box)
    return statistics.median(took) * 1000


async def docker_figures() -> dict[str, float]:
    run_id = f"bench-{os.getpid()}"
    backend = await asyncio.to_thread(make_backend, "docker", run_id=run_id)
    assert isinstance(backend, DockerBackend)
    url = backend.engine.address.url
    ratios = []
    async with await backend.create(SPEC) as box:
        p50 = await call_p50_ms(box)
        for _ in range(ROUNDS):
            ours = await calls_a_second(box)
            theirs = await asyncio.to_thread(execs_a_second, url, box.sandbox_id)
            ratios.append(ours / theirs)
            print(f"calls {ours:.0f}/s, engine execs {theirs:.1f}/s")
    pool = SandboxPool(backend, size=WARM_BOXES)
    warm = await warm_acquire_ms(pool)
    await pool.aclose()
    await backend.close()
    left = APIClient(base_url=url, version="auto").containers(
        all=True, filters={"label": f"agentrl.run={run_id}"}
    )
    return {
        "call_p50_ms": p50,
        "exec_ratio": statistics.median(ratios),
        "warm_acquire_ms": warm,
        "leaked": len(left),
    }


async def runtime_figures(runtime: str) -> dict[str, float]:
    backend = await asyncio.to_thread(make_backend, "docker", run_id=f"bench-{os.getpid()}")
    figures: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for name, spec in (("own", SPEC), ("runtime", replace(SPEC, runtime=runtime))):
            started = time.perf_counter()
            async with await backend.create(spec) as box:
                figures[f"{name}_create_ms"].append((time.perf_counter() - started) * 1000)
                figures[f"{name}_call_p50_ms"].append(await call_p50_ms(box, num=100))
                figures[f"{name}_calls_per_s"].append(await calls_a_second(box))
                started = time.perf_counter()
                await box.exec(["python3", "-c", "import json"])
                figures[f"{name}_python_ms"].append((time.perf_counter() - started) * 1000)
    await backend.close()
    ratios = zip(figures["runtime_call_p50_ms"], figures["own_call_p50_ms"], strict=True)
    figures["runtime_call_ratio"] = [ours / own for ours, own in ratios]
    return {name: statistics.median(values) for name, values in figures.items()}


async def bubblewrap_figures() -> dict[str, float]:
    backend = await asyncio.to_thread(make_backend, "bubblewrap")
    async with await backend.create(SPEC) as box:
        p50 = await call_p50_ms(box)
        rate = statistics.median([await calls_a_second(box) for _ in range(ROUNDS)])
    took = []
    for _ in range(ROUNDS * 4):
        started = time.perf_counter()
        box = await backend.create(SPEC)
        took.append(time.perf_counter() - started)
        await box.close()
    pool = SandboxPool(backend, size=WARM_BOXES)
    warm = await warm_acquire_ms(pool)
    await pool.aclose()
    await backend.close()
    return {
        "bubblewrap_call_p50_ms": p50,
        "bubblewrap_calls_per_s": rate,
        "bubblewrap_create_ms": statistics.median(took) * 1000,
        "bubblewrap_warm_acquire_ms": warm,
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description="Boxes: calls, warm boxes, churn.")
    parser.add_argument(
        "--churn", type=int, metavar="N", default=0, help="boxes to make and delete"
    )
    parser.add_argument("--swe-rex", action="store_true", help="measure swe-rex too")
    parser.add_argument("--runtime", metavar="NAME", help="measure boxes of this OCI runtime too")
    options = parser.parse_args()
    figures = await docker_figures() | await bubblewrap_figures() | await cpu_figures()
    if options.runtime:
        figures |= await runtime_figures(options.runtime)
    if options.swe_rex:
        url = find_engine().address.url.removeprefix("http+")
        figures |= await asyncio.to_thread(swe_rex_figures, url)
    if options.churn:
        figures |= await churn_figures("docker", options.churn)
        figures |= await churn_figures("bubblewrap", options.churn)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    asyncio.run(main())
