"""What a bubblewrap box costs in CPU time: forked from a zygote, against a bwrap for each box.

Both sides run in one process and take turns. The CPU time is that of this process, of everything
it starts and of everything in the boxes, as the control group that holds them all has counted it.

    python tests/bench/box_cpu.py

The last line is one JSON object, all in milliseconds of CPU time, medians of the rounds:
    box_cpu_ms              to make a box with eight files and to delete it
    first_call_cpu_ms       the first call of `cat` in a box
    call_cpu_ms             every further one
    unforked_*              the same where each box is a bwrap of its own
    box_cpu_ratio           unforked over forked, for a box with ten calls
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from sandboxes import SandboxSpec
from sandboxes.bubblewrap import BubblewrapBackend

ROUNDS = 5
AT_ONCE = 4
BOXES = 24
CALLS = 10
CPUACCT = Path("/sys/fs/cgroup/cpuacct")
SPEC = SandboxSpec(files={f"file-{n}.txt": "content\n" for n in range(8)})


class CpuClock:
    """Milliseconds of CPU time of this process and all its descendants, boxes too."""

    def __init__(self, group: Path, *, version: int) -> None:
        self.group = group
        self.version = version

    def __call__(self) -> float:
        if self.version == 1:
            return int((self.group / "cpuacct.usage").read_text()) / 1e6
        words = (self.group / "cpu.stat").read_text().split()
        return int(words[words.index("usage_usec") + 1]) / 1e3


@contextlib.contextmanager
def cpu_clock() -> Iterator[CpuClock]:
    """Version 1: a group that boxes stay in. Version 2: the parent of ours and of the boxes'."""
    cpu = BubblewrapBackend().cgroups
    if cpu.version == 2 and "cpu" in cpu.parents:
        yield CpuClock(cpu.parents["cpu"], version=2)
        return
    group = CPUACCT / f"bench-{os.getpid()}"
    group.mkdir()  # fails where CPU time cannot be told, and the bench with it
    try:
        (group / "cgroup.procs").write_text("0")
        yield CpuClock(group, version=1)
    finally:
        (CPUACCT / "cgroup.procs").write_text("0")
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


async def cpu_ms_per_box(clock: CpuClock, backend: BubblewrapBackend, num_calls: int) -> float:
    async def chain() -> None:
        for _ in range(BOXES // AT_ONCE):
            async with await backend.create(SPEC) as box:
                for _ in range(num_calls):
                    await box.exec(["cat", "file-0.txt"])

    before = clock()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(chain())
    return (clock() - before) / BOXES


async def measure(clock: CpuClock, backend: BubblewrapBackend) -> dict[str, float]:
    alone, one, many = [await cpu_ms_per_box(clock, backend, n) for n in (0, 1, CALLS)]
    return {
        "box_cpu_ms": alone,
        "first_call_cpu_ms": one - alone,
        "call_cpu_ms": (many - one) / (CALLS - 1),
        "rollout_cpu_ms": many,
    }


async def cpu_figures() -> dict[str, float]:
    with cpu_clock() as clock:
        sides = {"": BubblewrapBackend(), "unforked_": BubblewrapBackend(may_fork=False)}
        assert sides[""].forks
        rounds: list[dict[str, float]] = []
        for backend in sides.values():
            await cpu_ms_per_box(clock, backend, 1)
        for _ in range(ROUNDS):
            figures = {
                f"{side}{name}": value
                for side, backend in sides.items()
                for name, value in (await measure(clock, backend)).items()
            }
            print(" ".join(f"{name}={value:.2f}" for name, value in figures.items()), flush=True)
            rounds.append(figures)
        for backend in sides.values():
            await backend.close()
    medians = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    ratio = statistics.median(r["unforked_rollout_cpu_ms"] / r["rollout_cpu_ms"] for r in rounds)
    return {k: v for k, v in medians.items() if "rollout" not in k} | {"box_cpu_ratio": ratio}


async def main() -> None:
    figures = await cpu_figures()
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    asyncio.run(main())
