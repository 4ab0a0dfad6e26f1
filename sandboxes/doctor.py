"""What each backend enforces on this machine, for people and for the command line to print."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

from sandboxes.backends import BackendName, make_backend
from sandboxes.sandbox import BackendUnavailable, Capabilities, SandboxBackend, SandboxError
from sandboxes.spec import SandboxSpec

_NAMES: tuple[BackendName, ...] = ("docker", "bubblewrap", "subprocess")
_NUM_CALLS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendReport:
    """One backend: either why it cannot be used, or what it holds and how fast it is."""

    name: str
    problem: str | None
    """What is wrong and what to do about it; None when a box was made and used."""
    capabilities: Capabilities | None = None
    create_ms: float | None = None
    call_ms: float | None = None
    """Median time of a call of `true`."""


async def doctor(spec: SandboxSpec | None = None) -> tuple[BackendReport, ...]:
    """Makes and uses a box of every backend, one after another."""
    return tuple([await _examine(name, spec or SandboxSpec()) for name in _NAMES])


async def _examine(name: BackendName, spec: SandboxSpec) -> BackendReport:
    try:
        backend = await asyncio.to_thread(make_backend, name)
    except BackendUnavailable as e:
        return BackendReport(name=name, problem=str(e))
    try:
        create_ms, call_ms = await _time_a_box(backend, spec)
    except (SandboxError, ValueError) as e:  # it failed, or it does not make such boxes
        return BackendReport(name=name, problem=str(e), capabilities=backend.capabilities(spec))
    finally:
        await backend.close()
    return BackendReport(
        name=name,
        problem=None,
        capabilities=backend.capabilities(spec),
        create_ms=create_ms,
        call_ms=call_ms,
    )


async def _time_a_box(backend: SandboxBackend, spec: SandboxSpec) -> tuple[float, float]:
    started = time.perf_counter()
    async with await backend.create(spec) as box:
        created = time.perf_counter()
        call_ms = []
        for _ in range(_NUM_CALLS):
            before = time.perf_counter()
            await box.exec(["true"])
            call_ms.append((time.perf_counter() - before) * 1000)
    return (created - started) * 1000, statistics.median(call_ms)
