"""One suite for every backend: each test gets a box of each, and what a backend does not promise
on this machine is skipped by name."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from observing import SPEC, Promise, Sleepers, docker, docker_backend

from sandboxes import BackendUnavailable, Sandbox, SandboxBackend, make_backend
from sandboxes.bubblewrap import BubblewrapBackend
from sandboxes.engine.backend import DockerBackend


@pytest.fixture(
    params=[
        "bubblewrap",
        "bubblewrap-unforked",
        "subprocess",
        pytest.param("docker", marks=pytest.mark.docker),
    ]
)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[SandboxBackend]:
    backend: SandboxBackend
    if request.param == "docker":
        async with docker_backend(DockerBackend) as backend:
            yield backend
        return
    try:
        if request.param == "bubblewrap-unforked":
            backend = BubblewrapBackend(may_fork=False)
        else:
            backend = make_backend(request.param, run_id="conformance")
    except BackendUnavailable as e:
        pytest.skip(str(e))
    yield backend
    await backend.close()


@pytest.fixture(autouse=True)
def _runtime_is_known(request: pytest.FixtureRequest) -> None:
    if SPEC.runtime is None:
        return
    if request.node.get_closest_marker("docker") is None:
        pytest.skip("AGENTRL_BOX_RUNTIME is set, and only the docker backend has runtimes")
    known = docker("info", "--format", "{{json .Runtimes}}")
    if f'"{SPEC.runtime}":'.encode() not in known:
        pytest.skip(f"the engine knows no runtime {SPEC.runtime!r}; it has {known.decode()}")


@pytest.fixture
def promises(backend: SandboxBackend) -> Promise:
    """`promises("memory")` skips the test where the backend does not enforce that."""

    def check(*limits: str) -> None:
        missing = [name for name in limits if not getattr(backend.capabilities(SPEC), name)]
        if missing:
            pytest.skip(f"{backend.name} does not promise {', '.join(missing)} here")

    return check


@pytest.fixture
async def box(backend: SandboxBackend) -> AsyncIterator[Sandbox]:
    async with await backend.create(SPEC) as box:
        yield box


@pytest.fixture
async def neighbour(backend: SandboxBackend) -> AsyncIterator[Sandbox]:
    async with await backend.create(replace(SPEC, env={"NAME": "neighbour"})) as box:
        yield box


@pytest.fixture(scope="session", autouse=True)
def _started_by_nohup() -> None:
    """Whoever starts a worker may ignore signals; nothing in a box may notice."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)


@pytest.fixture
def sleepers() -> Sleepers:
    return Sleepers()
