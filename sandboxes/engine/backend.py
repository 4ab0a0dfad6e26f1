"""The docker backend, and the reaper of boxes that lost their owner."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from sandboxes.box import StreamSandbox
from sandboxes.engine import control_shell
from sandboxes.engine.connection import Engine, find_engine
from sandboxes.engine.container import ContainerBox, ProgramMissing, boxd
from sandboxes.engine.control_shell import ControlShell
from sandboxes.engine.images import Images
from sandboxes.engine.kind import LIMITS
from sandboxes.engine.reaper import EngineBox, remove_boxes
from sandboxes.engine.runtimes import GVISOR_NOTES
from sandboxes.engine.shell_box import ShellBox
from sandboxes.ownership import this_process
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
        self._without_python: set[str] = set()
        self._reaper: asyncio.Task[None] | None = None

    def new_host(self, spec: SandboxSpec) -> ContainerBox:
        return ContainerBox(self, spec, boxd(self.engine.kind, spec))

    async def prepare(self, spec: SandboxSpec) -> None:
        await self.images.get(spec.image)

    async def create(self, spec: SandboxSpec) -> StreamSandbox:
        spec.refuse_allow_list(self.name)
        if self._reaper is None:
            self._reaper = asyncio.create_task(self._reap_for_ever())
        await self.prepare(spec)  # before the time in which a box must start
        if spec.image not in self._without_python:
            try:
                return await super().create(spec)
            except ProgramMissing:
                self._note_without_python(spec.image)
        return await self._create_shell_box(spec)

    def _note_without_python(self, image: str) -> None:
        if image not in self._without_python:
            self._without_python.add(image)
            log.warning("%s", _slow(image))

    async def _create_shell_box(self, spec: SandboxSpec) -> ShellBox:
        host, shell = ContainerBox(self, spec, control_shell.MAIN), ControlShell()
        box = ShellBox(
            spec=spec,
            shell=shell,
            host=host,
            create=self.create,
            on_deleted=lambda: self.boxes.pop(host.box_id),
        )
        try:
            await self.bring_up(box, host, shell)
        except ProgramMissing as e:
            raise SandboxError(
                f"image {spec.image!r} has neither python3 nor /bin/sh, so nothing can be run in it; "
                "name an image that has one of them"
            ) from e
        return box

    def capabilities(self, spec: SandboxSpec | None = None) -> Capabilities:
        kind, info = self.engine.kind, self.engine.kind.info
        filters = " ".join(info.get("SecurityOptions") or ())
        has_gvisor = kind.is_gvisor(spec.runtime if spec else None)
        if has_gvisor:
            notes = list(GVISOR_NOTES)
        else:
            notes = ["The kernel is shared with the host, unless `runtime` names one that is not."]
            if "seccomp" not in filters:
                notes.append("The engine sets no system call filter.")
        if "MemoryLimit" in kind.enforced and not info.get("SwapLimit"):
            notes.append("Swap is not accounted for: a box may use it beyond its memory.")
        weak = [name for name in LIMITS if name not in kind.enforced]
        if weak:
            notes.append(
                f"The engine has no {', '.join(weak)}: it runs without control groups that it may "
                "write; delegate them (systemd, cgroup v2), or run the engine as root."
            )
        if "MemoryLimit" in weak:
            notes.append("Memory is limited for each process, not as a sum.")
        if kind.is_podman:
            notes.append("Podman limits the bytes on disk, not the number of files.")
        notes += [_slow(image) for image in sorted(self._without_python)]
        notes.append("Images that work in `workdir` themselves keep it on disk, without a limit.")
        return Capabilities(
            network=True,
            memory="MemoryLimit" in kind.enforced,
            pids="PidsLimit" in kind.enforced,
            cpus="CpuCfsQuota" in kind.enforced,
            disk=True,
            kernel_isolation=has_gvisor,
            outlives_commands=not has_gvisor,
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
        return [box.name for box in await remove_boxes(self.engine, self._is_unwanted)]

    def _is_unwanted(self, box: EngineBox) -> bool:
        if box.backend_id == self.backend_id:
            return box.name not in self.boxes
        return box.owner != this_process() and box.is_forsaken(time.time())

    async def close(self) -> None:
        """What an engine that has died does not remove now is left to the next sweep of anybody."""
        reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.cancel()
            await asyncio.gather(reaper, return_exceptions=True)
        try:
            await super().close()
            if reaper is not None:  # there were boxes; one may have come after it was given up
                await self.reap()
        except SandboxError as e:
            log.warning("could not remove all boxes, the next run does or `gc`: %s", e)
        await self.images.close()
        await self.engine.close()


def _slow(image: str) -> str:
    return (
        f"Image {image!r} has no python3: its boxes run each command through the engine, tens of "
        "times slower; a time-out ends all commands of a box, and there are no sessions and no "
        "background commands with logs."
    )
