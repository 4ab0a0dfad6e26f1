"""One command through the engine's own exec: started, fed, read, and its exit code asked for.

The engine has no request that ends an exec, and closing its stream does not: who gives one up
must see to its end inside the box.

The command's first words on stderr are a number that we gave it. Without it the engine could not
start the command at all, and what it printed instead are the engine's reasons.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Any

from docker.api import APIClient
from docker.errors import APIError

from sandboxes.engine.connection import Engine
from sandboxes.engine.hijack import STDOUT, open_stream
from sandboxes.sandbox import SandboxError
from sandboxes.spec import SandboxSpec
from sandboxes.wire import Command

SHELL = ["/bin/sh", "-c"]
_BEGIN = 'printf %s "$1" >&2; cd -- "$2" || exit 127; '
_RUN = 'shift 2; exec "$@"'
_FEED = 'n=$3; shift 3; head -c "$n" | "$@"'
"""Where the end of stdin cannot be sent: over TLS a stream has no half-close."""
_STDIN_CHUNK_BYTES = 64 * 1024
_EXIT_CODE_WAIT_S = 2.0
_EXIT_CODE_POLL_S = 0.02
_LOOK_S = 0.3


class EngineExec:
    """`sink` gets the command's output as it comes."""

    def __init__(
        self,
        engine: Engine,
        spec: SandboxSpec,
        command: Command,
        sink: Callable[[int, bytes], None],
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._command = command
        self._sink = sink
        self._mark = secrets.token_hex(8).encode()
        self._before_mark = b""
        self._id = ""
        self._transport: asyncio.Transport | None = None
        self._can_write = asyncio.Event()
        self._ended = asyncio.Event()
        self.is_requested = False
        """From here on the command may run, whatever we hear."""
        self.has_started = False
        """The command, not only the engine's attempt."""

    async def start(self, container: str) -> None:
        """Raises `SandboxError`."""
        command, argv = self._command, self._argv()
        try:
            created = await self._engine.call(
                "prepare a command",
                lambda client: client.exec_create(
                    container, argv, stdin=bool(command.stdin), environment=dict(command.env)
                ),
            )
            self._id = created["Id"]
            body = json.dumps({"Detach": False, "Tty": False}).encode()
            path = self._engine.path(f"exec/{self._id}/start")
            self.is_requested = True
            self._transport = await open_stream(self, self._engine.address, path, body)
        except (APIError, OSError) as e:
            raise SandboxError(f"the engine could not start a command: {e}") from e

    def _argv(self) -> list[str]:
        command, begin = self._command, _BEGIN
        limit = self._engine.kind.address_space(self._spec)
        if limit is not None:
            begin += f"ulimit -v {limit // 1024} || exit 126; "
        cwd = str(PurePosixPath(self._spec.workdir, command.cwd))
        words = ["sh", self._mark.decode(), cwd]
        if command.stdin and self._engine.address.tls:
            return [*SHELL, begin + _FEED, *words, str(len(command.stdin)), *command.argv]
        return [*SHELL, begin + _RUN, *words, *command.argv]

    @property
    def is_open(self) -> bool:
        """Whether the engine has said that it started, or tried to start, the command."""
        return self._transport is not None

    async def closed(self) -> None:
        await self._ended.wait()

    async def end(self) -> None:
        """Feeds stdin, then waits until the engine closes the stream."""
        feeding = asyncio.create_task(self._feed()) if self._command.stdin else None
        try:
            while not self._ended.is_set():
                async with _no_longer_than(_LOOK_S if feeding else None):
                    await self._ended.wait()
                # What a command leaves unread keeps the engine's stream open after its end.
                if feeding and not feeding.done() and not (await self._details())["Running"]:
                    return
        finally:
            if feeding:
                feeding.cancel()

    async def _feed(self) -> None:
        assert self._transport is not None
        data = self._command.stdin
        for start in range(0, len(data), _STDIN_CHUNK_BYTES):
            await self._can_write.wait()
            if self._ended.is_set():
                return
            self._transport.write(data[start : start + _STDIN_CHUNK_BYTES])
        await self._can_write.wait()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    async def exit_code(self) -> int:
        """Once the stream has ended; the engine may take a moment to know."""
        async with asyncio.timeout(_EXIT_CODE_WAIT_S):
            while True:
                details = await self._details()
                if not details["Running"] and details["ExitCode"] is not None:
                    return int(details["ExitCode"])
                await asyncio.sleep(_EXIT_CODE_POLL_S)

    async def _details(self) -> dict[str, Any]:
        def request(client: APIClient) -> dict[str, Any]:
            details: dict[str, Any] = client.exec_inspect(self._id)
            return details

        try:
            return await self._engine.call("look at a command", request)
        except APIError as e:
            raise SandboxError(f"the engine lost a command: {e}") from e

    @property
    def reason(self) -> str:
        """Why nothing was started, in the engine's words."""
        return self._before_mark.decode("utf-8", "replace").strip()

    def abandon(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # the stream

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._can_write.set()

    def received(self, stream: int, data: bytes) -> None:
        if self.has_started or stream == STDOUT:
            self._sink(stream, data)
            if not self.has_started:
                self._before_mark = (self._before_mark + data)[:4096]
            return
        self._before_mark += data
        before, mark, rest = self._before_mark.partition(self._mark)
        if mark:
            self.has_started = True
            self._before_mark = before
            self._sink(stream, rest)

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()
        self._can_write.set()


@asynccontextmanager
async def _no_longer_than(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        return
