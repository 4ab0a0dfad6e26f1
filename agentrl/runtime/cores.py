"""Cores of its own for each worker, so that roles compete for them as they would for accelerators.

Two threads on a shared core stall at every barrier of a small matrix product; a thread a core, on
cores that nobody shares, is the fast setting as well as the one that can be measured.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

Cores = tuple[int, ...]
"""Empty: wherever the system puts it."""


def cores_for(sizes: Sequence[int], *, pin: bool) -> list[Cores]:
    """So many cores for each worker, or no pinning; that there are enough was checked before."""
    if not pin:
        return [()] * len(sizes)
    free = iter(sorted(os.sched_getaffinity(0)))
    return [tuple(next(free) for _ in range(size)) for size in sizes]


def stay_on(cores: Cores) -> None:
    """Keep this process on these cores."""
    if cores:
        os.sched_setaffinity(0, cores)
