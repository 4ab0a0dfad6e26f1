"""One core for each worker, so that roles compete for cores as they would for accelerators.

Two threads on a shared core stall at every barrier of a small matrix product; one thread on a core
of its own is the fast setting as well as the one that can be measured.
"""

from __future__ import annotations

import os


def cores_for(num_workers: int, *, pin: bool) -> list[int | None]:
    """A core a worker, or no pinning at all; that there are enough was checked with the config."""
    if not pin:
        return [None] * num_workers
    cores = sorted(os.sched_getaffinity(0))
    assert num_workers <= len(cores)
    return list(cores[:num_workers])


def stay_on(core: int | None) -> None:
    """Keep this process on one core."""
    if core is not None:
        os.sched_setaffinity(0, {core})
