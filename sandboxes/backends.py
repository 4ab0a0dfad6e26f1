"""Which backend makes the boxes: chosen by name, or the best one that works here.

`auto` takes docker where an engine answers that has the base image, else bubblewrap; never the
subprocess backend, because it isolates nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from sandboxes.bubblewrap import BubblewrapBackend
from sandboxes.process import ProcessBackend
from sandboxes.sandbox import BackendUnavailable, SandboxBackend

log = logging.getLogger(__name__)

BackendName = Literal["auto", "docker", "bubblewrap", "subprocess"]
Limit = Literal["network", "memory", "pids", "disk", "cpus"]


_Kind = Literal["docker", "bubblewrap", "subprocess"]
_AUTO: tuple[_Kind, ...] = ("docker", "bubblewrap")


def make_backend(
    name: BackendName, *, require: Sequence[Limit] = (), run_id: str = "none"
) -> SandboxBackend:
    """Blocks while it looks at the machine. Raises `BackendUnavailable`, which says what to do."""
    if name != "auto":
        return _make(name, require, run_id)
    refusals = []
    for kind in _AUTO:
        try:
            backend = _make(kind, require, run_id, base_image_needed=True)
        except BackendUnavailable as e:
            refusals.append(f"[{kind}: {e}]")
        else:
            log.info("sandbox backend chosen backend=%s passed_over=%s", kind, refusals)
            return backend
    raise BackendUnavailable(
        f"no sandbox backend works on this machine. {' '.join(refusals)} To run tools without any "
        "isolation, set sandbox.backend: subprocess."
    )


def _make(
    kind: _Kind, require: Sequence[Limit], run_id: str, *, base_image_needed: bool = False
) -> SandboxBackend:
    backend = _new(kind, run_id, base_image_needed=base_image_needed)
    capabilities = backend.capabilities()
    missing = [limit for limit in require if not getattr(capabilities, limit)]
    if missing:
        raise BackendUnavailable(
            f"the {kind} backend does not enforce {', '.join(missing)} on this machine, but "
            f"sandbox.require asks for it: {' '.join(capabilities.notes)}"
        )
    return backend


def _new(kind: _Kind, run_id: str, *, base_image_needed: bool) -> SandboxBackend:
    match kind:
        case "docker":
            # The engine's SDK takes ten times longer to import than a box to make.
            from sandboxes.engine.backend import DockerBackend

            return DockerBackend(run_id=run_id, base_image_needed=base_image_needed)
        case "bubblewrap":
            return BubblewrapBackend()
        case "subprocess":
            return ProcessBackend()
