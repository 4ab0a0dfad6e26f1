"""Which backend makes the boxes: chosen by name, or the best one that works here.

`auto` never chooses the subprocess backend, because it isolates nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from sandboxes.bubblewrap import BubblewrapBackend
from sandboxes.process import ProcessBackend
from sandboxes.sandbox import BackendUnavailable, Capabilities, SandboxBackend

log = logging.getLogger(__name__)

BackendName = Literal["auto", "bubblewrap", "subprocess"]
Limit = Literal["network", "memory", "pids", "disk", "cpus"]


def make_backend(
    name: BackendName, *, require: Sequence[Limit] = (), run_id: str = "none"
) -> SandboxBackend:
    """Blocks while it looks at the machine. Raises `BackendUnavailable`, which says what to do."""
    if name == "auto":
        return _best_backend(require, run_id)
    backend = _new_backend(name, run_id)
    missing = missing_limits(backend.capabilities(), require)
    if missing:
        raise BackendUnavailable(
            f"the {name} backend does not enforce {', '.join(missing)} on this machine, but "
            f"sandbox.require asks for it: {' '.join(backend.capabilities().notes)}"
        )
    return backend


def missing_limits(capabilities: Capabilities, require: Sequence[Limit]) -> list[Limit]:
    return [limit for limit in require if not getattr(capabilities, limit)]


def _new_backend(name: Literal["bubblewrap", "subprocess"], run_id: str) -> SandboxBackend:
    match name:
        case "bubblewrap":
            return BubblewrapBackend()
        case "subprocess":
            return ProcessBackend()


def _best_backend(require: Sequence[Limit], run_id: str) -> SandboxBackend:
    refusals = []
    candidates: tuple[Literal["bubblewrap"], ...] = ("bubblewrap",)
    for name in candidates:
        try:
            backend = make_backend(name, require=require, run_id=run_id)
        except BackendUnavailable as e:
            refusals.append(f"{name}: {e}")
        else:
            log.info("sandbox backend chosen backend=%s passed_over=%s", name, refusals)
            return backend
    raise BackendUnavailable(
        "no sandbox backend works on this machine. "
        + " ".join(f"[{refusal}]" for refusal in refusals)
        + " To run tools without any isolation, set sandbox.backend: subprocess."
    )
