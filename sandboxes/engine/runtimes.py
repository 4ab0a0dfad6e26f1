"""OCI runtimes of the docker backend: which one a box gets, and what is different under gVisor.

gVisor's `runsc` gives a box a kernel of its own that is an ordinary process of the host. Control
groups hold that process, so whoever fills the box's memory or processes ends the whole box; and its
own threads count as the box's processes. Nor does it keep SIGKILL and SIGSTOP of the box's own user
from process 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GVISOR_TASKS = 40
"""The kernel's own threads and its file server: 27 when idle, with the systrap platform."""
GVISOR_TASKS_A_PROCESS = 2
"""Threads of a process cost less, so a box may have more of those than under runc."""

GVISOR_NOTES = (
    "gVisor: a command that reaches the box's memory or processes, or kills process 1, loses the "
    "box as a whole; no result says that it ran out of memory.",
    "gVisor: the number of processes is limited together with the kernel's own threads, so roughly.",
    "gVisor: a command can read and write the stream between its box and us (/proc/1/fd), so it can "
    "forge results of its own box; what it says in a verifier was never proof either.",
    "gVisor: the CPU time of a result counts waiting for a CPU too.",
    "gVisor: the bytes on disk are limited, not the number of files; files count as memory.",
)
GVISOR_DEATH = (
    "It ran under gVisor, where a box ends as a whole when a command reaches its memory or its "
    "processes, or kills process 1."
)


def pids_limit(pids: int, *, is_gvisor: bool) -> int:
    """So that as many processes as asked for do run."""
    return GVISOR_TASKS + GVISOR_TASKS_A_PROCESS * pids if is_gvisor else pids


def is_unknown(runtime: str, info: Mapping[str, Any]) -> bool:
    """By what the engine says of itself. To be asked after a refusal only: an engine may start
    runtimes that it does not list."""
    return runtime not in (info.get("Runtimes") or {})


def how_to_register(runtime: str, info: Mapping[str, Any]) -> str:
    known = ", ".join(sorted(info.get("Runtimes") or {})) or "none that it tells of"
    return (
        f"the engine knows no runtime {runtime!r} (it has: {known}); install it where the engine "
        f"runs, name it under `runtimes` in the engine's daemon.json, and send dockerd a SIGHUP "
        "(docs/sandboxes.md)"
    )
