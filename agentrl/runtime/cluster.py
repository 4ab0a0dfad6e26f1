"""Starting or joining Ray, and leaving it without a trace.

A run on one machine starts a private cluster, which ends with the process that started it. Nothing
is reported to anybody and no dashboard is served.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

MAX_SOCKET_PATH_BYTES = 107
"""Of a unix socket on Linux; Ray puts its sockets about 60 bytes below its temporary folder."""
_RAY_SOCKET_SUFFIX_BYTES = 64


@contextmanager
def joined_cluster(address: str | None) -> Iterator[None]:
    """Inside, `ray` is connected. `address=None` starts a private cluster and stops it after."""
    # Both are read when Ray is initialised. A private cluster listens on this machine only and
    # lives for one run, so tokens would guard nothing; a shared one keeps its own setting.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        _check_socket_path()
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="agentrl",
        )
    else:
        ray.init(
            address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="agentrl"
        )
    try:
        yield
    finally:
        ray.shutdown()


def _check_socket_path() -> None:
    folder = os.environ.get("RAY_TMPDIR", "/tmp/ray")
    longest = len(os.fsencode(folder)) + _RAY_SOCKET_SUFFIX_BYTES
    if longest > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"Ray's socket paths under {folder!r} would be about {longest} bytes, "
            f"and the system allows {MAX_SOCKET_PATH_BYTES}; set RAY_TMPDIR to a shorter folder"
        )
