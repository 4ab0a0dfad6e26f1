"""What a box should be: the request an environment makes, before any backend is chosen.

Defaults are the safe ones: no network, an unprivileged user, caps on memory, processes and disk.
A backend that cannot enforce a field says so in `capabilities()`; it never pretends.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """A box for the tools of one rollout."""

    image: str = "agentrl-base"
    """Image of the docker backend; the bubblewrap backend shows the host's /usr read-only."""
    cpus: float = 1.0
    memory_bytes: int = 512 * MIB
    """Memory and swap together."""
    pids: int = 128
    disk_bytes: int = 256 * MIB
    """Of the workdir; /tmp and /dev/shm are capped beside it."""
    network: Literal["none"] | tuple[str, ...] = "none"
    """`none`, or the only hosts that may be reached; a backend that cannot hold an allow-list
    refuses one."""
    user: int = 1000
    workdir: str = "/workspace"
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Relative path to content, there before the first command."""
    env: Mapping[str, str] = field(default_factory=dict)
    exec_timeout_s: float = 30.0
    max_output_bytes: int = 64 * 1024
    """Per stream of one command; head and tail are kept and the true size is reported."""
    verify: Literal["same", "fresh"] = "same"
    """Where rewards are computed: `fresh` makes `verifier()` the only honest place."""
    runtime: str | None = None
    """OCI runtime of the docker backend, such as `runsc`; other backends refuse one."""

    def refuse_allow_list(self, backend: str) -> None:
        """For backends that can only give a box no network at all."""
        if self.network != "none":
            raise ValueError(
                f"the {backend} backend cannot hold a network allow-list that tools cannot walk "
                f"around, got network={self.network!r}; use network='none' and put what the tools "
                "need into `files` or the image"
            )

    def refuse_runtime(self, backend: str) -> None:
        """For backends that have none: the box would share the kernel that it should not."""
        if self.runtime is not None:
            raise ValueError(
                f"the {backend} backend has no runtimes, got runtime={self.runtime!r}; set "
                "sandbox.backend: docker, or leave out the runtime"
            )

    @property
    def pool_key(self) -> str:
        """Boxes with equal keys are interchangeable before their files are written."""
        shape = {k: v for k, v in asdict(self).items() if k not in ("files", "verify")}
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
