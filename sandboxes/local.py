"""What backends that run boxes as processes of this machine have in common.

A box is a process at the other end of a socket pair. Starting and ending one blocks, so both
happen in threads of our own. The threads must outlive the boxes: the kernel takes the thread that
started a process for its parent, and a box dies with its parent. Starting and ending exclude
each other, so a creation that is cancelled in the middle leaks neither process nor folder.
"""

from __future__ import annotations

import abc
import asyncio
import errno
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sandboxes.box import StreamSandbox
from sandboxes.bundle import boot_bytes
from sandboxes.client import BoxClient
from sandboxes.ownership import this_process
from sandboxes.spec import SandboxSpec
from sandboxes.stream_backend import StreamBackend

END_TIMEOUT_S = 5.0
_NUM_THREADS = 8


class LocalBox(abc.ABC):
    """One box's process and all that belongs to it on this machine."""

    def __init__(self, backend: LocalBackend, spec: SandboxSpec) -> None:
        self.backend = backend
        self.spec = spec
        self.box_id = f"{this_process().local_name}-{secrets.token_hex(4)}"
        self._our_end, self._box_end = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_deleted = False
        self._last_words = ""

    @abc.abstractmethod
    def popen(self, stream: socket.socket) -> subprocess.Popen[bytes]:
        """Start the process on `stream`, with its stderr piped to us."""

    @abc.abstractmethod
    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End the process and all that it started. The stream is closed already."""

    @abc.abstractmethod
    def clean_up(self) -> None:
        """Remove what the box had on this machine; its processes are gone or never were."""

    def cause_of_death(self) -> str:
        """The last words of the box's processes."""
        # closed in a thread, when the box is deleted; what there was to read is kept then
        with suppress(ValueError):
            self._listen()
        return self._last_words

    def _listen(self) -> None:
        if self._process is None or self._process.stderr is None:
            return
        os.set_blocking(self._process.stderr.fileno(), False)
        words = self._process.stderr.read(4096) or b""
        self._last_words += words.decode("utf-8", "replace").strip()

    async def start(self, client: BoxClient) -> None:
        await client.connect(self._our_end)
        await self.backend.in_thread(self._start)
        client.write(boot_bytes(same_python=True))
        await client.ready()

    def _start(self) -> None:
        with self._lock:
            if not self._is_deleted:
                self._process = self.popen(self._box_end)
                self._box_end.close()

    async def delete(self) -> None:
        await self.backend.in_thread(self._delete)

    def _delete(self) -> None:
        with self._lock:
            self._is_deleted = True
            self._box_end.close()
            try:
                if self._process is not None:
                    self._end(self._process)
            finally:
                self.clean_up()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            self.end(process)
        finally:
            assert process.stderr is not None
            self._listen()
            process.stderr.close()


def await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process ends that was asked to, and kill one that takes too long.

    Raises `OSError` when not even that ends it, as where it waits for a disk that does not answer.
    """
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise OSError(
                errno.EBUSY, f"process {process.pid} was killed and does not end"
            ) from None


class LocalBackend(StreamBackend):
    start_timeout_s = 30.0

    def __init__(self) -> None:
        super().__init__()
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="agentrl-box")

    async def in_thread(self, call: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def create(self, spec: SandboxSpec) -> StreamSandbox:
        spec.refuse_runtime(self.name)
        return await super().create(spec)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await asyncio.to_thread(self._threads.shutdown)
