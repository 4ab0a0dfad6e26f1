"""Calls of `true` through swe-rex, for comparison: its server in a container, its client here.

Run by swe_rex.py with the interpreter of a virtual environment that has swe-rex; the
server runs the container's own python with that environment's packages mounted read-only. Prints
one JSON object. The container has swe-rex's own way of life: no limits, and the host's network.

    python tests/bench/swe_rex_side.py IMAGE ENGINE_URL
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import statistics
import subprocess
import sys
import sysconfig
import time

from swerex.runtime.abstract import Command  # type: ignore[import-not-found]  # not a dependency
from swerex.runtime.remote import RemoteRuntime  # type: ignore[import-not-found]

AT_ONCE = 16
CALLS = 320
START_TIMEOUT_S = 60
TRUE = Command(command=["true"])


def start_server(image: str, engine: str, port: int, token: str) -> str:
    """In the host's network: an engine without a bridge publishes no ports."""
    packages = sysconfig.get_path("purelib")
    command = [
        *(
            "docker",
            "-H",
            engine,
            "run",
            "-d",
            "--rm",
            "--network",
            "host",
            "--label",
            "agentrl.bench",
        ),
        *("-v", f"{packages}:/packages:ro", "-e", "PYTHONPATH=/packages", image),
        *("python3", "-c", "from swerex.server import main; main()"),
        *("--host", "127.0.0.1", "--port", str(port), "--auth-token", token),
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


async def measure(runtime: RemoteRuntime) -> dict[str, float]:
    async with asyncio.timeout(START_TIMEOUT_S):
        while not await runtime.is_alive():  # noqa: ASYNC110  # a server sets no event
            await asyncio.sleep(0.1)
    took = []
    for _ in range(100):
        started = time.perf_counter()
        await runtime.execute(TRUE)
        took.append(time.perf_counter() - started)

    async def chain() -> None:
        for _ in range(CALLS // AT_ONCE):
            await runtime.execute(TRUE)

    started = time.perf_counter()
    await asyncio.gather(*(chain() for _ in range(AT_ONCE)))
    rate = CALLS / (time.perf_counter() - started)
    return {"swe_rex_call_p50_ms": statistics.median(took) * 1000, "swe_rex_calls_per_s": rate}


def main() -> None:
    image, engine = sys.argv[1:]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(8)
    container = start_server(image, engine, port, token)
    try:
        runtime = RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=token)
        print(json.dumps(asyncio.run(measure(runtime))))
    finally:
        subprocess.run(["docker", "-H", engine, "kill", container], capture_output=True)


if __name__ == "__main__":
    main()
