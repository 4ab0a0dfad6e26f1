"""Boxes that are forks of a zygote, instead of one bwrap with its own Python for each.

A box keeps a descriptor of its process: to kill that ends the box, whatever its zygote is doing,
and the box has ended when the descriptor says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import signal
import socket

from sandboxes.cgroups import BoxCgroup, Cgroups
from sandboxes.client import BoxClient
from sandboxes.family import Birth, Families, Family, InThread
from sandboxes.local import END_TIMEOUT_S
from sandboxes.ownership import this_process
from sandboxes.spec import SandboxSpec
from sandboxes.zygote import box_request


class ForkedBox:
    def __init__(
        self, families: Families, cgroups: Cgroups, in_thread: InThread, spec: SandboxSpec
    ) -> None:
        self.spec = spec
        self.box_id = f"{this_process().local_name}-{secrets.token_hex(4)}"
        self._families = families
        self._cgroups = cgroups
        self._in_thread = in_thread
        self._our_end, self._box_end = socket.socketpair()
        self._making: asyncio.Task[None] | None = None
        self._family: Family | None = None
        self._birth: Birth | None = None
        self._cgroup: BoxCgroup | None = None

    async def start(self, client: BoxClient) -> None:
        await client.connect(self._our_end)
        self._making = asyncio.create_task(self._make())
        await asyncio.shield(self._making)
        await client.ready()

    async def _make(self) -> None:
        """Never stopped in the middle, so that `delete` knows what there is."""
        self._family = await self._families.of(self.spec)
        cgroup = await self._make_cgroup()
        with box_request(self.spec, self._cgroups, cgroup, self._box_end) as (request, fds):
            self._birth = await self._family.fork(request, fds)
        self._box_end.close()

    async def _make_cgroup(self) -> BoxCgroup:
        made: list[BoxCgroup] = []
        await self._in_thread(lambda: made.append(self._cgroups.make(self.box_id, self.spec)))
        self._cgroup = made[0]
        return made[0]

    async def delete(self) -> None:
        if self._making is not None:
            await asyncio.gather(self._making, return_exceptions=True)
        self._box_end.close()
        if self._family is not None:
            self._family.num_users -= 1
        try:
            if self._birth is not None:
                await self._kill(self._birth.pidfd.result())
        finally:
            if self._cgroup is not None:
                await self._in_thread(self._cgroup.remove)

    async def _kill(self, pidfd: int) -> None:
        assert self._family is not None
        assert self._birth is not None
        self._family.forget(self._birth)
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            async with asyncio.timeout(END_TIMEOUT_S):
                await _end_of(pidfd)
        except TimeoutError:
            raise OSError(errno.EBUSY, "a deleted box lives on", self.box_id) from None
        finally:
            os.close(pidfd)

    def cause_of_death(self) -> str:
        if self._cgroup and self._cgroup.num_oom_kills():
            return f"(it ran out of its {self.spec.memory_bytes} bytes of memory)"
        if self._birth is not None and self._birth.problem:
            return self._birth.problem
        return self._family.zygote.last_words() if self._family else ""


async def _end_of(pidfd: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
