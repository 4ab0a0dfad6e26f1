"""Starting or joining Ray, and leaving it without a trace.

A run on one machine starts a private cluster, which ends with the process that started it. Nothing
is reported to anybody and no dashboard is served. A cluster that was there before is joined from one
of its nodes; when the run leaves, Ray ends the run's own actors and nothing else.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import structlog
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agentrl.runtime.drains import draining_nodes

log = structlog.get_logger(__name__)

KNOCK_TIMEOUT_S = 10.0
MAX_SOCKET_PATH_BYTES = 107
"""Of a unix socket on Linux."""
_SOCKET_SUFFIX_BYTES = 72
"""How far below its temporary folder Ray puts sockets."""


@contextmanager
def joined_cluster(address: str | None) -> Iterator[None]:
    """Inside, `ray` is connected. `address=None` starts a private cluster and stops it after.

    Raises ValueError when there is no cluster at the address, or none that this machine is part of.
    The private cluster's folder holds the logs of its processes; it is removed when the block ends
    well, and kept, with a line in the log that says where, when it does not.
    """
    # Both are read when Ray is initialised. A private cluster listens on this machine only and
    # lives for one run, so tokens would guard nothing; a shared one keeps its own setting.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:
        _join(address)
        try:
            yield
        finally:
            gc.collect()
            ray.shutdown()
        return
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    folder = _private_folder()
    _init(address="local", include_dashboard=False, _temp_dir=str(folder))
    try:
        yield
    except BaseException:
        log.info("the logs of the run's processes are kept", folder=str(folder))
        raise
    finally:
        # handles in cycles would be let go after the cluster, which Ray does not survive
        gc.collect()
        ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def near_the_driver(*, if_it_stays: bool = False) -> NodeAffinitySchedulingStrategy:
    """For actors that must live where the run folder and the driver are: the run ends with them.

    `if_it_stays`: elsewhere, when this machine is about to leave the cluster, which refuses all that
    must be there.
    """
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=if_it_stays)


def in_turn(number: int) -> NodeAffinitySchedulingStrategy | None:
    """For the `number`-th of actors that are to be spread over the nodes and ask for no resources,
    which Ray places at random if it may. Nodes that have no cores, or are about to leave, get none,
    unless there is nothing else."""
    leaving = draining_nodes()
    nodes = sorted(
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU") and node["NodeID"] not in leaving
    )
    if not nodes:
        return None
    return NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=False)


def _join(address: str) -> None:
    if "://" in address:
        raise ValueError(
            f"runtime.ray_address {address!r} is that of a Ray client server; wanted host:port of "
            "the cluster itself, from a machine that is one of its nodes (`ray start --address`)"
        )
    try:
        _knock(address)
        _init(address=address)
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"runtime.ray_address {address!r}: no Ray cluster could be joined there "
            f"({str(error).partition(chr(10))[0]}); this machine must be one of its nodes: "
            f"`ray start --address={address}`"
        ) from error


def _knock(address: str) -> None:
    """Find out at once whether somebody listens there; Ray would go on asking for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return  # a word of Ray's own, such as `auto`
    if not port.isdecimal():
        raise OSError(f"{port!r} is no port")
    socket.create_connection((host.strip("[]"), int(port)), KNOCK_TIMEOUT_S).close()


def _init(**options: Any) -> None:
    """Quietly, and without Ray's handler of SIGTERM, which dumps stacks before it calls ours."""
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(log_to_driver=False, logging_level=logging.ERROR, namespace="agentrl", **options)
    signal.signal(signal.SIGTERM, handler)


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="agentrl-"))
    longest = len(os.fsencode(folder)) + _SOCKET_SUFFIX_BYTES
    if longest > MAX_SOCKET_PATH_BYTES:
        folder.rmdir()
        raise ValueError(
            f"Ray's sockets below {folder.parent} would have paths of about {longest} bytes, and "
            f"the system allows {MAX_SOCKET_PATH_BYTES}; set TMPDIR to a shorter folder"
        )
    return folder
