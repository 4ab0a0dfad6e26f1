"""The life of boxes that have a boxd, the same for every backend that makes such boxes.

A backend knows its open boxes from before they exist until they are deleted, so that closing it,
at any moment, ends all of them.
"""

from __future__ import annotations

import abc
import asyncio

from sandboxes.box import BoxHost, StreamSandbox
from sandboxes.client import BoxClient
from sandboxes.sandbox import Capabilities, SandboxError, SandboxLost
from sandboxes.spec import SandboxSpec


class StreamBackend(abc.ABC):
    name: str
    start_timeout_s: float

    def __init__(self) -> None:
        self.boxes: dict[str, StreamSandbox] = {}

    @abc.abstractmethod
    def capabilities(self, spec: SandboxSpec | None = None) -> Capabilities: ...

    @abc.abstractmethod
    def new_host(self, spec: SandboxSpec) -> BoxHost:
        """A box that is not started yet."""

    async def prepare(self, spec: SandboxSpec) -> None:  # noqa: B027  # most need nothing
        pass

    async def create(self, spec: SandboxSpec) -> StreamSandbox:
        spec.refuse_allow_list(self.name)
        try:
            host = self.new_host(spec)
        except OSError as e:  # no descriptor left: no fault of the spec's
            raise SandboxError(f"could not start a {self.name} box: {e}") from e
        client = BoxClient()
        box = StreamSandbox(
            spec=spec,
            client=client,
            host=host,
            create=self.create,
            on_deleted=lambda: self.boxes.pop(host.box_id),
        )
        await self.bring_up(box, host, client)
        return box

    async def bring_up(self, box: StreamSandbox, host: BoxHost, client: BoxClient) -> None:
        spec = box.spec
        self.boxes[host.box_id] = box
        try:
            await self._start(host, client)
            if spec.files:
                await box.upload(spec.files)
        except BaseException:
            await box.discard()
            raise

    async def _start(self, host: BoxHost, client: BoxClient) -> None:
        try:
            async with asyncio.timeout(self.start_timeout_s):
                await host.start(client)
        except (OSError, TimeoutError, SandboxLost) as e:
            late = f"no answer within {self.start_timeout_s:.0f} s"
            cause = host.cause_of_death() or str(e) or late
            raise SandboxError(f"could not start a {self.name} box: {cause}") from e

    async def close(self) -> None:
        await self.close_boxes()

    async def close_boxes(self) -> None:
        """All of them, whatever becomes of one; then `SandboxError` for what could not be removed."""
        closing = [box.close() for box in self.boxes.values()]
        ended = await asyncio.gather(*closing, return_exceptions=True)
        failures = [failure for failure in ended if failure is not None]
        for failure in failures:
            if not isinstance(failure, SandboxError):
                raise failure
        if failures:
            raise SandboxError("; ".join(map(str, failures)))
