"""The docker backend, and the reaper of boxes that lost their owner."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import Any

from docker.api import APIClient

from sandboxes.box import StreamSandbox
from sandboxes.engine.connection import Engine, find_engine
from sandboxes.engine.container import LABEL, ContainerBox, remove
from sandboxes.engine.images import Images
from sandboxes.ownership import Owner, this_process
from sandboxes.sandbox import BackendUnavailable, Capabilities, SandboxError
from sandboxes.spec import SandboxSpec
from sandboxes.stream_backend import StreamBackend

log = logging.getLogger(__name__)

REAP_EVERY_S = 30.0


class DockerBackend(StreamBackend):
    name = "docker"
    start_timeout_s = 180.0

    def __init__(
        self, *, run_id: str, engine: Engine | None = None, base_image_needed: bool = False
    ) -> None:
        """Blocks while it looks for an engine."""
        super().__init__()
        self.engine = engine or find_engine()
        base = SandboxSpec().image
        if base_image_needed and not self.engine.has_image(base):
            raise BackendUnavailable(
                f"an engine answers, but it has no image {base!r}; make it with docker/build-base.sh"
            )
        self.images = Images(self.engine)
        self.run_id = run_id
        self.backend_id = secrets.token_hex(8)
        is_version_2 = self.engine.info.get("CgroupVersion") == "2"
        self.oom_file = (
            f"/sys/fs/cgroup/{'memory.events' if is_version_2 else 'memory/memory.oom_control'}"
        )
        self._reaper: asyncio.Task[None] | None = None

    def new_host(self, spec: SandboxSpec) -> ContainerBox:
        return ContainerBox(self, spec)

    async def create(self, spec: SandboxSpec) -> StreamSandbox:
        if self._reaper is None:
            self._reaper = asyncio.create_task(self._reap_for_ever())
        return await super().create(spec)

    def capabilities(self) -> Capabilities:
        info = self.engine.info
        filters = " ".join(info.get("SecurityOptions") or ())
        notes = ["The kernel is shared with the host, unless `runtime` names one that is not."]
        if "seccomp" not in filters:
            notes.append("The engine sets no system call filter.")
        notes.append("Images that work in `workdir` themselves keep it on disk, without a limit.")
        return Capabilities(
            network=True,
            memory=bool(info.get("MemoryLimit")),
            pids=bool(info.get("PidsLimit")),
            cpus=bool(info.get("CpuCfsQuota")),
            disk=True,
            notes=tuple(notes),
        )

    async def _reap_for_ever(self) -> None:
        while True:
            try:
                await self.reap()
            except SandboxError as e:
                log.warning("could not look for boxes without an owner: %s", e)
            await asyncio.sleep(REAP_EVERY_S)

    async def reap(self) -> list[str]:
        """Remove boxes of dead owners, boxes past their lease, and those we gave up on."""

        def request(client: APIClient) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = client.containers(all=True, filters={"label": LABEL})
            return found

        removed = []
        for container in await self.engine.call("list boxes", request):
            name = container["Names"][0].lstrip("/")
            if self._is_forsaken(name, container["Labels"]):
                await remove(self.engine, container["Id"])
                removed.append(name)
        if removed:
            log.info("removed boxes without an owner boxes=%s", removed)
        return removed

    def _is_forsaken(self, name: str, labels: dict[str, str]) -> bool:
        if labels.get(f"{LABEL}.backend") == self.backend_id:
            return name not in self.boxes
        owner = Owner.parse(labels[f"{LABEL}.owner"])
        if owner == this_process():
            return False
        return not owner.may_live() or time.time() > int(labels[f"{LABEL}.lease"])

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        await super().close()
        await self.engine.close()
