"""Engines of other kinds than the one at hand, by what they say of themselves."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.api import APIClient

from sandboxes.engine import connection, runtimes
from sandboxes.engine.backend import DockerBackend
from sandboxes.engine.connection import Engine
from sandboxes.engine.container import Image, boxd, create_options
from sandboxes.engine.kind import EngineKind
from sandboxes.spec import MIB, SandboxSpec

ALL = dict.fromkeys(("MemoryLimit", "SwapLimit", "PidsLimit", "CpuCfsQuota"), True)


def kind_of(**info: Any) -> EngineKind:
    return EngineKind(info=info, is_podman=False)


def backend_of(**info: Any) -> DockerBackend:
    return DockerBackend(run_id="test", engine=cast(Engine, SimpleNamespace(kind=kind_of(**info))))


@pytest.mark.parametrize(
    ("version", "file"),
    [("1", "/sys/fs/cgroup/memory/memory.oom_control"), ("2", "/sys/fs/cgroup/memory.events")],
)
def test_kills_for_want_of_memory_are_counted_by_either_version(version: str, file: str) -> None:
    assert kind_of(CgroupVersion=version).oom_file == file
    assert kind_of().oom_file == "/sys/fs/cgroup/memory/memory.oom_control"


@pytest.mark.parametrize(("version", "mode"), [("1", None), ("2", "private")])
def test_a_box_sees_its_own_control_group_whatever_the_engine_is_set_to(
    version: str, mode: str | None
) -> None:
    """Of version 1 every engine shows it its own."""
    kind = kind_of(CgroupVersion=version)
    with closing(APIClient(base_url="unix:///nowhere", version="1.41")) as client:
        options = create_options(
            client,
            SandboxSpec(),
            Image(name="image", workdir="/"),
            boxd(kind, SandboxSpec()),
            kind,
        )
    assert options["host_config"].get("CgroupnsMode") == mode


def test_an_engine_with_everything_promises_everything() -> None:
    held = backend_of(SecurityOptions=["name=seccomp,profile=default"], **ALL).capabilities()
    assert (held.network, held.memory, held.pids, held.cpus, held.disk) == (True,) * 5
    assert not [note for note in held.notes if "no " in note and "Limit" in note]


def test_a_rootless_engine_without_delegation_promises_less_and_says_so() -> None:
    held = backend_of(MemoryLimit=False, PidsLimit=False, CpuCfsQuota=False).capabilities()
    assert (held.memory, held.pids, held.cpus) == (False,) * 3
    assert any("MemoryLimit, PidsLimit, CpuCfsQuota" in note for note in held.notes)
    assert any("no system call filter" in note for note in held.notes)


def test_podman_without_root_is_not_believed_under_cgroup_v1() -> None:
    held = backend_of(Rootless=True, CgroupVersion="1", **ALL).capabilities()
    assert (held.memory, held.pids, held.cpus) == (False,) * 3
    delegated = backend_of(Rootless=True, CgroupVersion="2", **ALL).capabilities()
    assert (delegated.memory, delegated.pids, delegated.cpus) == (True,) * 3


@pytest.mark.parametrize(("has_limit", "limits"), [(True, {}), (False, {"RLIMIT_AS": 5 * MIB})])
def test_a_process_is_limited_where_the_sum_of_all_cannot_be(
    has_limit: bool, limits: dict[str, int]
) -> None:
    backend = backend_of(**{**ALL, "MemoryLimit": has_limit})
    host = backend.new_host(SandboxSpec(memory_bytes=5 * MIB))
    told = [word for word in host._main.argv if word.startswith("RLIMIT_")]
    assert told == [f"{name}={value}" for name, value in limits.items()]


def test_a_kernel_without_swap_accounting_is_told_of() -> None:
    held = backend_of(**{**ALL, "SwapLimit": False}).capabilities()
    assert held.memory
    assert any("Swap is not accounted" in note for note in held.notes)


def test_rootless_engines_and_podman_are_looked_for_after_the_usual_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert [address.path for address in connection._addresses()] == [
        "/var/run/docker.sock",
        "/run/user/7/docker.sock",
        "/run/user/7/podman/podman.sock",
        "/run/podman/podman.sock",
    ]


@pytest.mark.parametrize(
    ("runtime", "info", "is_it"),
    [
        (None, {"DefaultRuntime": "runc"}, False),
        (None, {"DefaultRuntime": "runsc"}, True),
        (None, {}, False),
        ("runsc", {}, True),
        ("runsc-systrap", {}, True),
        ("io.containerd.runsc.v1", {}, True),
        ("safe", {"Runtimes": {"safe": {"path": "/opt/gvisor/runsc"}}}, True),
        ("safe", {"Runtimes": {"safe": {"runtimeType": "io.containerd.runsc.v1"}}}, True),
        (
            "kata",
            {"Runtimes": {"kata": {"path": "/opt/runsc/kata"}}, "DefaultRuntime": "runsc"},
            False,
        ),
    ],
)
def test_gvisor_is_known_by_its_name_or_program(
    runtime: str | None, info: dict[str, Any], is_it: bool
) -> None:
    held = backend_of(**ALL, **info).capabilities(SandboxSpec(runtime=runtime))
    assert held.kernel_isolation == is_it
    assert held.outlives_commands != is_it
    notes = " ".join(held.notes)
    assert ("box as a whole" in notes) == is_it
    assert ("kernel is shared" in notes) != is_it
    assert kind_of(**info).is_gvisor(runtime) == is_it


def test_the_kernels_own_threads_are_no_processes_of_the_box() -> None:
    assert runtimes.pids_limit(64, is_gvisor=False) == 64
    assert runtimes.pids_limit(64, is_gvisor=True) > 64 + 27
