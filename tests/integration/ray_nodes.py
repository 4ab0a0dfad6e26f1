"""A Ray cluster of several nodes on this machine: each node is a raylet with processes of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray._private.utils
from ray._private import services
from ray._private.node import Node
from ray._raylet import persist_port
from ray.cluster_utils import Cluster

DEADLINE_S = 600
"""Only to catch hangs."""
OBJECT_STORE_BYTES = 100 << 20
SETTINGS = {
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 8,
    "agent_register_timeout_ms": 1000 * DEADLINE_S,
}
"""Quick to notice a lost node, and patient with agents that are slow to start."""
AGENT_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
OURS = ("Worker", "Runner", "Coordinator", "ParameterStore")


class Nodes:
    """The head is there from the start. `Node` is Ray's, which has no types."""

    def __init__(self, folder: Path, *, head_cpus: int) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ["RAY_AUTH_MODE"] = "disabled"
        # a file for everybody on this machine, which would make the next `ray.init()` join us
        address_file = Path(ray._private.utils.get_ray_address_file(None))
        address_file.parent.mkdir(exist_ok=True)  # Ray expects it whatever `temp_dir` says
        with _patience():
            self._cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": head_cpus,
                    "object_store_memory": OBJECT_STORE_BYTES,
                    "include_dashboard": False,
                    "temp_dir": str(folder),
                    "_system_config": SETTINGS,
                },
            )
        address_file.unlink(missing_ok=True)
        self.head = self._cluster.head_node

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, num_cpus: int) -> Any:
        with _patience():
            return self._cluster.add_node(num_cpus=num_cpus, object_store_memory=OBJECT_STORE_BYTES)

    def kill(self, node: Any) -> None:
        """SIGKILL to its raylet, which takes its workers along."""
        self._cluster.remove_node(node, allow_graceful=False)

    def drain(self, node: Any, *, left_s: int) -> None:
        """As the autoscaler and clouds do it: it will be taken away then, and does not end before
        it is empty."""
        command = Path(sys.executable).with_name("ray")
        options = {
            "address": self.address,
            "node-id": node.node_id,
            "reason": "DRAIN_NODE_REASON_PREEMPTION",
            "reason-message": "test",
            "deadline-remaining-seconds": left_s,
        }
        subprocess.run(
            [command, "drain-node", *(f"--{name}={value}" for name, value in options.items())],
            check=True,
            capture_output=True,
            timeout=DEADLINE_S,
        )

    def is_alive(self, node: Any) -> bool:
        raylet = node.all_processes["raylet"][0].process
        return raylet.poll() is None

    def processes(self, node: Any, *names: str) -> list[psutil.Process]:
        """Actors of ours that live there."""
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        titles = tuple(f"ray::{name}" for name in names or OURS)
        return [p for p in raylet.children(recursive=True) if _title(p).startswith(titles)]

    def wait_until_clean(self, *nodes: Any) -> None:
        """Actors of a run end when its driver has gone, and nodes stay."""
        deadline = time.monotonic() + DEADLINE_S
        while left := [p for node in nodes for p in self.processes(node)]:
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.2)

    def end(self) -> None:
        self._cluster.shutdown()


@contextmanager
def ray_nodes(*, head_cpus: int) -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(prefix="agentrl-"))  # short: it holds sockets
    nodes = Nodes(folder, head_cpus=head_cpus)
    try:
        yield nodes
    finally:
        nodes.end()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _patience() -> Iterator[None]:
    """On a busy machine Python takes long to start, and Ray gives a node half a minute to register,
    and its raylet a quarter of one to learn the ports of its agents: here it is told beforehand."""
    get_node, start_ray_processes = services.get_node, Node.start_ray_processes

    def get_node_when_there(gcs_address: str, node_id: str) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return get_node(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def start_with_known_ports(node: Any) -> None:
        for name in AGENT_PORTS:
            port = _free_port()
            setattr(node._ray_params, name, port)
            persist_port(node._session_dir, node._node_id, name, port)
        start_ray_processes(node)

    services.get_node, Node.start_ray_processes = get_node_when_there, start_with_known_ports
    try:
        yield
    finally:
        services.get_node, Node.start_ray_processes = get_node, start_ray_processes


def _free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
