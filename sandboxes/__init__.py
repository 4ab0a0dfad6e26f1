"""Boxes for the tools of a rollout; knows nothing of agentrl.

    backend = make_backend("auto", require=("network", "memory"), run_id="quickstart")
    pool = SandboxPool(backend, size=32, max_open=512, max_creating=4)
    pool.prewarm([spec] * 16)                 # optional: keep unused boxes ready
    async with pool.lease(spec) as box:       # or: box = await pool.acquire(spec); pool.release(box)
        result = await box.exec("ls -l", timeout_s=10)
    boxes = await pool.acquire_many([spec] * 8)   # all of them, or an error
    await pool.aclose()
    await backend.close()

- `make_backend(name, *, require=(), run_id="none") -> SandboxBackend` blocks some milliseconds;
  raises `BackendUnavailable`. `auto` is docker where an engine has the base image, else bubblewrap.
- `SandboxPool(backend, *, size, max_open, max_creating, max_deleting, max_memory_bytes,
  max_ready_s, acquire_timeout_s, clock)`; `acquire`, `acquire_many`, `release`, `lease`,
  `prewarm`, `metrics() -> PoolMetrics`, `aclose`. `release` returns at once and the box is deleted
  in the background; a box is never handed out twice.
- `doctor(spec=None) -> tuple[BackendReport, ...]` is async, and so are `take_inventory()` and
  `collect()`, which list the boxes of this machine and remove those of dead owners, and
  `build_base(tag, recipe)`, which builds the base image.

- A box also has `spawn` (background, with logs), `session` (a shell that stays) and `verifier`
  (a fresh box to grade in); see `Sandbox`.

Errors: `SandboxError` (`SandboxLost`, `BackendUnavailable`) is never the rollout's fault;
`UnsafePath`, `Unsupported`, other `ValueError`s and `OSError`s (`FileNotFoundError` ...) are the caller's.
"""

from sandboxes.backends import BackendName, Limit, make_backend
from sandboxes.base_image import BaseRecipe, build_base
from sandboxes.doctor import BackendReport, doctor
from sandboxes.inventory import FoundBox, Inventory, collect, take_inventory
from sandboxes.pool import PoolMetrics, SandboxPool
from sandboxes.sandbox import (
    BackendUnavailable,
    Capabilities,
    ExecResult,
    ExecUsage,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxLost,
    UnsafePath,
    Unsupported,
)
from sandboxes.spec import SandboxSpec

__all__ = [
    "BackendName",
    "BackendReport",
    "BackendUnavailable",
    "BaseRecipe",
    "Capabilities",
    "ExecResult",
    "ExecUsage",
    "FoundBox",
    "Inventory",
    "Limit",
    "PoolMetrics",
    "Sandbox",
    "SandboxBackend",
    "SandboxError",
    "SandboxLost",
    "SandboxPool",
    "SandboxSpec",
    "UnsafePath",
    "Unsupported",
    "build_base",
    "collect",
    "doctor",
    "make_backend",
    "take_inventory",
]
