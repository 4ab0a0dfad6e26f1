"""One box as a container: what is asked of the engine, and its birth and death.

The body of the request is the security of the box. No network, no capability, no new privilege,
the engine's system call filter, nothing of the host mounted, memory without swap, no log. Name
and labels say whose box it is before it exists, so that none can be lost track of.

boxd is the container's first process rather than a child of an init: it reaps orphans itself,
and then no signal from inside the box can end it. Its program comes over the attached stream, so
nothing is mounted or copied. In an image without python a shell takes its place, see
`control_shell.py`. Either's stdin closes with our connection, however we end, and then the
container ends and the engine removes it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from docker.api import APIClient
from docker.errors import APIError, NotFound
from docker.types import LogConfig, Ulimit

from sandboxes.bundle import boot_argv, boot_bytes
from sandboxes.client import BoxClient
from sandboxes.engine.attach import AttachStream, attach
from sandboxes.engine.connection import Engine
from sandboxes.engine.kind import EngineKind
from sandboxes.engine.runtimes import (
    GVISOR_DEATH,
    how_to_register,
    is_unknown,
    pids_limit,
)
from sandboxes.ownership import this_process
from sandboxes.sandbox import SandboxError, SandboxLost
from sandboxes.spec import MIB, SandboxSpec

if TYPE_CHECKING:
    from sandboxes.engine.backend import DockerBackend

LABEL = "agentrl"
LEASE_S = 24 * 3600
"""Longer than any rollout: after it a box may be removed by anybody."""
DELETE_TIMEOUT_S = 20.0
LOOK_AGAIN_S = 0.02
"""While the engine removes a box whose program has ended."""
_SMALL_FILES_PER_MIB = 256
_PODMAN_PROCESSES = 32_768
"""Of all boxes of one user together; a box's own are limited by its control group."""
_ALL_STREAMS = "stream=1&stdin=1&stdout=1&stderr=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What matters of an image."""

    name: str
    workdir: str
    """Where the image itself works; its content there must not be hidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MainProcess:
    """What a box runs from its birth to its end."""

    argv: Sequence[str]
    first_bytes: bytes
    """Sent to it at once; it answers that it is ready."""
    needs_init: bool = False
    """It does not reap orphans itself."""


def boxd(kind: EngineKind, spec: SandboxSpec) -> MainProcess:
    address_space = kind.address_space(spec)
    limits = () if address_space is None else (f"RLIMIT_AS={address_space}",)
    argv = boot_argv("python3", "isolated=1", f"oom={kind.oom_file}", *limits)
    return MainProcess(argv=argv, first_bytes=boot_bytes(same_python=False))


class ProgramMissing(SandboxError):
    """The image has no such main process."""


_NOT_FOUND = re.compile(r"executable file .*not found|no such file or directory", re.IGNORECASE)


def create_options(
    client: APIClient,
    spec: SandboxSpec,
    image: Image,
    main: MainProcess,
    kind: EngineKind,
) -> dict[str, Any]:
    keeps_workdir = image.workdir == spec.workdir
    user = f"{spec.user}:{spec.user}"
    small = min(spec.disk_bytes, 64 * MIB)
    tmpfs = {"/tmp": _tmpfs(small, spec, kind, mode="1777")}
    if not keeps_workdir:
        tmpfs[spec.workdir] = _tmpfs(spec.disk_bytes, spec, kind, mode="0755")
    return {
        "image": image.name,
        "entrypoint": list(main.argv),
        "command": [],
        "user": user,
        "working_dir": spec.workdir,
        "environment": {"HOME": spec.workdir, "LANG": "C.UTF-8", **spec.env},
        "hostname": "box",
        "stdin_open": True,
        "use_config_proxy": False,
        "host_config": client.create_host_config(
            network_mode="none",
            auto_remove=True,
            init=main.needs_init,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=pids_limit(spec.pids, is_gvisor=kind.is_gvisor(spec.runtime)),
            nano_cpus=int(spec.cpus * 1e9),
            mem_limit=spec.memory_bytes,
            memswap_limit=spec.memory_bytes,
            oom_score_adj=500,
            read_only=not keeps_workdir,
            tmpfs=tmpfs,
            shm_size=small,
            ulimits=_ulimits(kind),
            log_config=LogConfig(type=LogConfig.types.NONE),
            ipc_mode="private",
            # Else an engine may be set to show a box the groups of all the host, not its own.
            cgroupns="private" if kind.has_cgroup_2 else None,
            runtime=spec.runtime,
        ),
    }


def _tmpfs(size: int, spec: SandboxSpec, kind: EngineKind, *, mode: str) -> str:
    options = f"rw,exec,nosuid,nodev,size={size}"
    if kind.is_podman:  # which knows neither an owner nor a number of files
        return f"{options},mode=1777"
    num_files = max(1024, size // MIB * _SMALL_FILES_PER_MIB)
    return f"{options},nr_inodes={num_files},mode={mode},uid={spec.user},gid={spec.user}"


def _ulimits(kind: EngineKind) -> list[Ulimit]:
    limits = {"nofile": 4096, "core": 0}
    if kind.is_podman:  # which else asks for more than it may, where the machine has a limit
        limits["nproc"] = _PODMAN_PROCESSES
    return [Ulimit(name=name, soft=limit, hard=limit) for name, limit in limits.items()]


def labels(spec: SandboxSpec, backend_id: str, run_id: str) -> dict[str, str]:
    return {
        LABEL: "1",
        f"{LABEL}.run": run_id,
        f"{LABEL}.owner": str(this_process()),
        f"{LABEL}.backend": backend_id,
        f"{LABEL}.lease": str(int(time.time()) + LEASE_S),
        f"{LABEL}.spec": spec.pool_key,
    }


class ContainerBox:
    """A container from before it is asked for until the engine has forgotten it."""

    def __init__(self, backend: DockerBackend, spec: SandboxSpec, main: MainProcess) -> None:
        self._backend = backend
        self._spec = spec
        self._main = main
        self._creation: asyncio.Task[None] | None = None
        self._stream: AttachStream | None = None
        self.box_id = f"agentrl-{this_process().local_name}-{secrets.token_hex(4)}"

    @property
    def engine(self) -> Engine:
        return self._backend.engine

    async def start(self, client: BoxClient) -> None:
        image = await self._backend.images.get(self._spec.image)
        self._creation = asyncio.create_task(self._create(image))
        await asyncio.shield(self._creation)
        path = self.engine.path(f"containers/{self.box_id}/attach?{_ALL_STREAMS}")
        try:
            self._stream = await attach(client, self.engine.address, path)
            await self.engine.call("start a box", lambda engine: engine.start(self.box_id))
        except (APIError, OSError) as e:  # Podman starts what is attached to
            reason = str(e.explanation if isinstance(e, APIError) else e)
            program = self._main.argv[0]
            if program in reason and _NOT_FOUND.search(reason):
                raise ProgramMissing(f"image {self._spec.image!r} has no {program}") from e
            raise await self._refusal(f"the engine could not start a box: {reason}") from e
        client.write(self._main.first_bytes)
        try:
            await client.ready()
        except SandboxLost as e:
            if (
                self._main.needs_init
                and f"exec {self._main.argv[0]} failed" in self.cause_of_death()
            ):
                raise ProgramMissing(self.cause_of_death()) from e
            raise

    async def _create(self, image: Image) -> None:
        def request(engine: APIClient) -> None:
            engine.create_container(
                name=self.box_id,
                labels=labels(self._spec, self._backend.backend_id, self._backend.run_id),
                **create_options(engine, self._spec, image, self._main, self.engine.kind),
            )

        try:
            await self.engine.call("create a box", request)
        except APIError as e:
            raise await self._refusal(f"the engine refused to create a box: {e.explanation}") from e

    async def _refusal(self, reason: str) -> SandboxError:
        """With what to do where the runtime is the reason: each engine has other words for that."""
        runtime = self._spec.runtime
        if runtime is not None:
            info = await self.engine.call("look up its runtimes", lambda client: client.info())
            if is_unknown(runtime, info):
                return SandboxError(f"{how_to_register(runtime, info)}. It said: {reason}")
        return SandboxError(reason)

    def cause_of_death(self) -> str:
        if self._stream is None:
            return ""
        words = self._stream.errors.decode("utf-8", "replace").strip()
        is_gvisor = self.engine.kind.is_gvisor(self._spec.runtime)
        is_riddle = is_gvisor and self._stream.ended_by_box
        return words or (GVISOR_DEATH if is_riddle else "")

    async def delete(self) -> None:
        """Also when `start` was cancelled: a creation under way is waited for, then undone.

        Not for ever: a box that an engine makes later, or cannot remove now, is the reaper's.
        """
        if self._creation is None:
            return
        try:
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                await asyncio.wait([self._creation])
                while not await remove(self.engine, self.box_id):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(LOOK_AGAIN_S)
        except TimeoutError as e:
            raise SandboxError(
                f"the engine did not remove box {self.box_id} within {DELETE_TIMEOUT_S:.0f} s; it "
                "is removed when the engine answers again"
            ) from e


async def remove(engine: Engine, container: str) -> bool:
    """With its anonymous volumes. Whether it is gone; if not, the engine is removing it already."""
    try:
        await engine.call(
            "remove a box", lambda client: client.remove_container(container, v=True, force=True)
        )
    except NotFound:
        return True
    except APIError as e:
        # Podman has its own words for a state in which a container is being removed.
        if e.status_code != 409 and "state improper" not in str(e.explanation):
            raise SandboxError(f"the engine could not remove box {container}: {e}") from e
        return False
    return True
