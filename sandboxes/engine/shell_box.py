"""A box of an image without python: every command is an exec of the engine's.

Slower than boxd by an order of magnitude, and weaker in three things that only a process of ours
inside could do. A time-out or a cancelled call ends *all* processes of the box, since nothing
there knows which belong to one command. Commands share a user with the shell that watches over
them. Sessions and background commands with logs are refused.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from sandboxes.background import Background
from sandboxes.box import (
    ANSWER_GRACE_S,
    PING_TIMEOUT_S,
    TRANSFER_TIMEOUT_S,
    StreamSandbox,
    raise_file_error,
)
from sandboxes.boxd.capture import Capture
from sandboxes.engine import shell_files
from sandboxes.engine.container import ContainerBox
from sandboxes.engine.control_shell import KILL_ALL, ControlShell, oom_kills
from sandboxes.engine.engine_exec import SHELL, EngineExec
from sandboxes.engine.hijack import STDERR, STDOUT
from sandboxes.paths import BoxFile, box_path
from sandboxes.sandbox import ExecResult, SandboxError, SandboxLost, Unsupported
from sandboxes.session import Session
from sandboxes.spec import SandboxSpec
from sandboxes.wire import Command

_KILLED = 137
_COLLATERAL = (
    b"\n[killed with all of this box: a time-out ends everything in a box without python]\n"
)


class _End(NamedTuple):
    rc: int
    timed_out: bool
    was_swept: bool
    """Killed because some command of the box ran out of time or was cancelled."""


Sink = Callable[[int, bytes], None]


class ShellBox(StreamSandbox):
    def __init__(
        self,
        *,
        spec: SandboxSpec,
        shell: ControlShell,
        host: ContainerBox,
        create: Callable[[SandboxSpec], Awaitable[StreamSandbox]],
        on_deleted: Callable[[], object],
    ) -> None:
        super().__init__(spec=spec, client=shell, host=host, create=create, on_deleted=on_deleted)
        self._shell = shell
        self._engine = host.engine
        self._asking = asyncio.Lock()
        self._sweeps: set[asyncio.Task[None]] = set()
        self._num_sweeps = 0
        self._num_oom_kills = 0

    async def _exec(self, command: Command, timeout_s: float, cap: int) -> ExecResult:
        out, err = Capture(cap), Capture(cap)
        started = time.monotonic()
        with self.guard():
            ended = await self._run(
                command,
                lambda stream, data: (out if stream == STDOUT else err).add(data),
                timeout_s,
            )
            is_oom = ended.rc == _KILLED and not ended.was_swept and await self._saw_oom_kill()
        if ended.was_swept and not ended.timed_out:
            err.add(_COLLATERAL)
        return ExecResult(
            rc=ended.rc,
            out=out.value(),
            err=err.value(),
            out_bytes=out.total,
            err_bytes=err.total,
            timed_out=ended.timed_out,
            oom=is_oom,
            seconds=time.monotonic() - started,
        )

    async def _run(self, command: Command, sink: Sink, timeout_s: float) -> _End:
        if self._sweeps:  # or they would take this one along
            await asyncio.wait(self._sweeps)
        self._shell.raise_if_lost()
        num_sweeps = self._num_sweeps
        process = EngineExec(self._engine, self.spec, command, sink)
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                await process.start(self.sandbox_id)
                await self._or_lost(process.end())
        except TimeoutError:
            if not deadline.expired():
                raise
            if not process.is_open:
                self._lose(f"the engine did not start a command within {timeout_s:.1f} s")
            await asyncio.shield(self._begin_sweep(process))
            self._shell.raise_if_lost()
            return _End(rc=_KILLED, timed_out=True, was_swept=True)
        except asyncio.CancelledError:
            if process.is_requested:
                self._begin_sweep(process)
            raise
        except SandboxLost:
            process.abandon()
            raise
        except SandboxError as e:
            process.abandon()
            self._lose(str(e))
        process.abandon()
        if not process.has_started and "rgument list too long" in process.reason:
            sink(STDERR, process.reason.encode())
            return _End(rc=126, timed_out=False, was_swept=False)
        if not process.has_started:
            self._lose_full(process.reason)
        try:
            rc = await process.exit_code()
        except (SandboxError, TimeoutError) as e:
            self._lose(str(e) or "the engine did not tell how a command ended")
        was_swept = rc == _KILLED and self._num_sweeps > num_sweeps
        return _End(rc=rc, timed_out=False, was_swept=was_swept)

    async def _or_lost(self, end: Coroutine[Any, Any, None]) -> None:
        """The engine closes a command's stream with its box, but not when it dies itself."""
        ending = asyncio.create_task(end)
        gone = asyncio.create_task(self._shell.gone.wait())
        try:
            await asyncio.wait((ending, gone), return_when=asyncio.FIRST_COMPLETED)
            self._shell.raise_if_lost()
            await ending
        finally:
            gone.cancel()
            ending.cancel()

    def _begin_sweep(self, process: EngineExec) -> asyncio.Task[None]:
        """Owned by the box, so that a command whose caller is gone is ended all the same."""
        self._num_sweeps += 1
        sweep = asyncio.create_task(self._sweep(process))
        self._sweeps.add(sweep)
        sweep.add_done_callback(self._sweeps.discard)
        return sweep

    async def _sweep(self, process: EngineExec) -> None:
        """End all processes of the box; where that cannot be known to work, end the box."""
        try:
            if not process.is_open:
                self._begin_deletion("nobody knows whether a cancelled command has started")
                return
            async with asyncio.timeout(ANSWER_GRACE_S):
                await self._ask(KILL_ALL)
                await process.closed()
        except (TimeoutError, SandboxLost):
            self._begin_deletion("a command could not be ended, so its box was")
        finally:
            process.abandon()

    async def _ask(self, script: str) -> list[str]:
        async with self._asking:
            return await self._shell.ask(script)

    async def _ask_in_time(self, script: str) -> list[str]:
        """A command may stop the shell, which runs as its user: a box so stopped is lost."""
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                return await self._ask(script)
        except TimeoutError:
            self._lose(f"the box's main process did not answer within {PING_TIMEOUT_S:.1f} s")

    async def _saw_oom_kill(self) -> bool:
        said = await self._ask_in_time(oom_kills(self._engine.kind.oom_file))
        before = self._num_oom_kills
        self._num_oom_kills = int(said[0]) if said and said[0].isdecimal() else 0
        return self._num_oom_kills > before

    async def alive(self) -> bool:
        try:
            with self.guard():
                await self._ask_in_time(":")
        except SandboxLost:
            return False
        return True

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        max_output_bytes: int | None = None,
    ) -> Background:
        raise Unsupported(
            f"image {self.spec.image!r} has no python3, so its boxes have no background commands "
            "with logs; use exec('command > log 2>&1 &') and read the log, or an image with python3"
        )

    async def session(self, shell: str = "bash") -> Session:
        raise Unsupported(
            f"image {self.spec.image!r} has no python3, so its boxes have no sessions; give each "
            "exec its cwd and env, or use an image with python3"
        )

    # files

    async def _put(self, files: Sequence[BoxFile]) -> None:
        if not files:
            return
        base = "/" if files[0].path.startswith("/") else "."
        data = shell_files.packed(files, self.spec.user)
        names = [file.path for file in files]
        rc, _, err = await self._script(shell_files.WRITE, base, *names, stdin=data, limit=0)
        if rc:
            self._raise(rc, err, ", ".join(names[:3]))

    async def _get(self, path: str, *, limit: int, tree: bool) -> list[BoxFile]:
        name = box_path(path, self.spec.workdir)
        size = shell_files.tar_bytes(limit) if tree else limit + 1
        script = shell_files.LIST if tree else shell_files.READ
        rc, out, err = await self._script(script, str(size), name, limit=size)
        if rc:
            self._raise(rc, err, path)
        if not tree:
            if len(out) > limit:
                raise OSError(errno.EFBIG, f"more than {limit} bytes", path)
            rc, _, _ = await self._script(shell_files.IS_EXECUTABLE, name, limit=0)
            return [BoxFile("", bytes(out), executable=rc == 0)]
        try:
            return await asyncio.to_thread(shell_files.unpacked, bytes(out), limit, path)
        except ValueError as e:
            self._lose(str(e))

    async def _script(
        self, script: str, *arguments: str, stdin: bytes = b"", limit: int
    ) -> tuple[int, bytearray, bytes]:
        out, err = bytearray(), Capture(4096)

        def sink(stream: int, data: bytes) -> None:
            if stream != STDOUT:
                err.add(data)
            elif len(out) < limit:
                out.extend(data[: limit - len(out)])

        argv = [*SHELL, script, "sh", *arguments]
        command = Command(argv=argv, env={}, cwd=".", stdin=stdin)
        with self.guard():
            ended = await self._run(command, sink, TRANSFER_TIMEOUT_S)
            if ended.timed_out:
                self._lose("the box did not take or give a file in time")
        return ended.rc, out, err.value()

    def _raise(self, rc: int, err: bytes, path: str) -> NoReturn:
        if rc == 127:
            raise Unsupported(
                f"image {self.spec.image!r} has no python3 and not what files need instead, tar "
                f"and head: {err.decode('utf-8', 'replace').strip()}"
            )
        raise_file_error(path, *shell_files.reason_of(rc, err))
