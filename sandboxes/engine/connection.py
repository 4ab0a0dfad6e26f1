"""Finding an engine and talking to it.

What happens once a box goes through the `docker` SDK, which blocks, in threads of our own with a
client each (a client is not safe to share). What happens often goes through one attached stream a
box, see `attach.py`.

An engine that cannot be used is missing, stopped or forbidden, and each has another mend.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import requests
from docker.api import APIClient
from docker.errors import APIError, DockerException
from docker.utils import kwargs_from_env, parse_host

from sandboxes.engine.kind import EngineKind
from sandboxes.engine.unix_socket import UnixAdapter
from sandboxes.sandbox import BackendUnavailable, SandboxError

CONNECT_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 60
PULL_TIMEOUT_S = 1200
_NUM_THREADS = 8
_ANY_VERSION = "1.30"
"""Until the engine has said which it speaks; the question itself has no version."""

T = TypeVar("T")


class EngineMissing(BackendUnavailable):
    """No engine was named, and none is installed."""


class Address(NamedTuple):
    """`unix:///path`, `http://host:port` or `https://host:port`."""

    url: str

    @property
    def path(self) -> str | None:
        """Of a unix socket."""
        parts = urlsplit(self.url)
        return parts.path if "unix" in parts.scheme else None

    @property
    def host_and_port(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname
        return parts.hostname, parts.port or 2375

    @property
    def tls(self) -> ssl.SSLContext | None:
        if urlsplit(self.url).scheme != "https":
            return None
        folder = Path(os.environ.get("DOCKER_CERT_PATH") or "~/.docker").expanduser()
        try:
            context = ssl.create_default_context(cafile=folder / "ca.pem")
            context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        except OSError as e:
            raise BackendUnavailable(
                f"the engine at {self.url} is to be reached with TLS, but {folder} has no ca.pem, "
                f"cert.pem and key.pem that can be used ({e}); set DOCKER_CERT_PATH to a folder "
                "that has"
            ) from e
        return context


class Engine:
    """An engine that answers."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._local = threading.local()
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="agentrl-engine")
        self._version = _ANY_VERSION
        try:
            with closing(self._client()) as client:
                said = client.version(api_version=False)
            self._version = said["ApiVersion"]
            parts = said.get("Components") or ()
            is_podman = any("Podman" in part.get("Name", "") for part in parts)
            self._local = threading.local()  # the next client speaks that version
            with closing(self._client()) as client:
                self.kind = EngineKind(info=client.info(), is_podman=is_podman)
        except (DockerException, requests.RequestException) as e:
            raise BackendUnavailable(
                f"something at {address.url} accepts connections but is no Docker engine: {e}"
            ) from e

    def _client(self) -> APIClient:
        client = getattr(self._local, "client", None)
        if client is None:
            tls = kwargs_from_env().get("tls") if self.address.tls else False
            client = APIClient(
                base_url=self.address.url,
                version=self._version,
                timeout=CALL_TIMEOUT_S,
                tls=tls,
            )
            # Streams do not go through a proxy, so nothing may; and REQUESTS_CA_BUNDLE would take
            # the place of the engine's own certificates.
            client.trust_env = False
            if self.address.path is not None:
                client.mount(client.base_url, UnixAdapter(self.address.url, CALL_TIMEOUT_S))
            self._local.client = client
        return client

    async def call(self, what: str, request: Callable[[APIClient], T]) -> T:
        """One request. An engine's refusal is an `APIError`; no answer is a `SandboxError`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._call, what, request)

    def _call(self, what: str, request: Callable[[APIClient], T]) -> T:
        client = self._client()
        try:
            return request(client)
        except APIError:
            raise
        except (requests.RequestException, DockerException, OSError) as e:
            raise SandboxError(f"the engine gave no answer when asked to {what}: {e}") from e
        finally:
            # The SDK keeps a connection for each of the last paths asked, and each box is a path.
            client.close()

    def has_image(self, name: str) -> bool:
        """Blocks."""
        return bool(self._call("list images", lambda client: client.images(name)))

    def path(self, request: str) -> str:
        """Of a request that does not go through the SDK."""
        return f"/v{self._version}/{request}"

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)


def find_engine() -> Engine:
    """Blocks while it knocks. Raises `BackendUnavailable` with the most useful of the reasons."""
    reasons: dict[str, str] = {}
    for address in _addresses():
        problem = _knock(address)
        if problem is None:
            return Engine(address)
        kind, text = problem
        reasons.setdefault(kind, text)
    if reason := reasons.get("forbidden") or reasons.get("stopped"):
        raise BackendUnavailable(reason)
    if os.environ.get("DOCKER_HOST"):
        raise BackendUnavailable(reasons["missing"])
    raise EngineMissing(reasons["missing"])


def _addresses() -> Iterator[Address]:
    chosen = os.environ.get("DOCKER_HOST")
    if chosen:
        if chosen.startswith("ssh://"):
            raise BackendUnavailable(
                f"DOCKER_HOST={chosen} goes over ssh, which the docker backend cannot attach to; "
                "forward the engine's socket with `ssh -L` and name that one"
            )
        use_tls = bool(os.environ.get("DOCKER_TLS_VERIFY"))
        yield Address(parse_host(chosen, tls=use_tls))
        return
    own = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    for path in (
        "/var/run/docker.sock",
        f"{own}/docker.sock",
        f"{own}/podman/podman.sock",
        "/run/podman/podman.sock",
    ):
        yield Address(f"http+unix://{path}")


def _knock(address: Address) -> tuple[str, str] | None:
    """What is wrong with an address: `missing`, `stopped` or `forbidden`, and the mend."""
    where = address.path or "{}:{}".format(*address.host_and_port)
    try:
        if address.path is not None:
            with socket.socket(socket.AF_UNIX) as knock:
                knock.settimeout(CONNECT_TIMEOUT_S)
                knock.connect(address.path)
        else:
            socket.create_connection(address.host_and_port, CONNECT_TIMEOUT_S).close()
    except PermissionError:
        return (
            "forbidden",
            f"this user may not use the Docker engine at {where}; add the user to the group that "
            "owns the socket (often `docker`) and log in again, or run a rootless engine",
        )
    except (FileNotFoundError, socket.gaierror):
        return (
            "missing",
            f"there is no engine at {where}; install Docker or Podman, run docker/start-engine.sh as "
            "root, or set DOCKER_HOST to an engine elsewhere",
        )
    except OSError as e:
        return (
            "stopped",
            f"no Docker engine answers at {where} ({e}); start it (systemctl start docker, or "
            "docker/start-engine.sh)",
        )
    return None
