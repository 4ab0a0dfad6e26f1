"""`StreamSandbox`: a `Sandbox` over the stream of a boxd, whatever backend made the box.

It turns frames into results and errors. A command's own failure is an `ExecResult`; a file's is an
`OSError` or `UnsafePath`; everything else means that the box is gone: it is closed on the spot
and every caller, now and later, gets `SandboxLost` with the reason.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path, PurePosixPath
from typing import NoReturn, Protocol, Self

from sandboxes import wire
from sandboxes.background import Background
from sandboxes.boxd import frames
from sandboxes.client import NEVER, BoxClient, Call, Deadline
from sandboxes.download import Download
from sandboxes.paths import (
    BoxFile,
    box_path,
    files_of_mapping,
    files_of_tree,
    relative_path,
)
from sandboxes.sandbox import (
    READ_LIMIT_BYTES,
    ExecResult,
    SandboxError,
    SandboxLost,
    UnsafePath,
    Unsupported,
)
from sandboxes.session import Session
from sandboxes.spec import SandboxSpec
from sandboxes.wire import Command, Unrunnable

log = logging.getLogger(__name__)

ANSWER_GRACE_S = 1.8
"""After a command's deadline: time for the kill and the answer, then the box is given up."""
TRANSFER_TIMEOUT_S = 60.0
PING_TIMEOUT_S = 5.0
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
_EXHAUSTED = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


class BoxHost(Protocol):
    """A box as its backend knows it: how it comes to be and how it ends."""

    box_id: str

    async def start(self, client: BoxClient) -> None:
        """Make the box and connect `client` to a boxd that is ready."""
        ...

    async def delete(self) -> None:
        """End the box and everything of it, also when `start` was cancelled at any point."""
        ...

    def cause_of_death(self) -> str:
        """A sentence for people, or nothing, once the stream has ended."""
        ...


class StreamSandbox:
    def __init__(
        self,
        *,
        spec: SandboxSpec,
        client: BoxClient,
        host: BoxHost,
        create: Callable[[SandboxSpec], Awaitable[StreamSandbox]],
        on_deleted: Callable[[], object],
    ) -> None:
        self.spec = spec
        self.sandbox_id = host.box_id
        self._client = client
        self._host = host
        self._create = create
        self._on_deleted = on_deleted
        self._deletion: asyncio.Task[None] | None = None

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: int | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        self._refuse_other_user(user)
        timeout_s = self.spec.exec_timeout_s if timeout_s is None else timeout_s
        wire.check_timeout(timeout_s)
        try:
            todo = self._command(command, env, cwd, stdin)
        except Unrunnable as error:
            return wire.not_run(126, str(error))
        return await self._exec(todo, timeout_s, self._cap(max_output_bytes))

    async def _exec(self, command: Command, timeout_s: float, cap: int) -> ExecResult:
        flags = frames.HAS_STDIN if command.stdin else 0
        request = wire.exec_request(command, timeout_s=timeout_s, cap=cap, flags=flags)
        limit_s = timeout_s + ANSWER_GRACE_S
        with self._call(limit_s, "its command's time-out and the time to kill it") as call:
            call.send(frames.EXEC, request)
            if command.stdin:
                await self._feed(call, command.stdin)
            kind, payload = await call.end()
        if kind == frames.RESULT:
            return wire.exec_result(payload)
        return self._not_started(command, *wire.error(payload))

    def _refuse_other_user(self, user: int | None) -> None:
        if user is not None and user != self.spec.user:
            raise Unsupported(
                f"user={user}: everything in this box runs as user {self.spec.user}; give the box "
                "another user in its spec (0 is root without any capability), or put what needs "
                "other rights into the image"
            )

    def _command(
        self,
        command: str | Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str | None,
        stdin: bytes = b"",
    ) -> Command:
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv:
            raise ValueError("an empty command; give a string for sh -c, or at least one word")
        folder = box_path(cwd or ".", self.spec.workdir)
        return Command(argv=argv, env=env or {}, cwd=folder, stdin=stdin)

    def _cap(self, max_output_bytes: int | None) -> int:
        """How much is kept of each stream of a command, whose result the client is to expect."""
        cap = self.spec.max_output_bytes if max_output_bytes is None else max_output_bytes
        if not 0 <= cap <= MAX_OUTPUT_BYTES:
            raise ValueError(f"max_output_bytes={cap} must be from 0 to {MAX_OUTPUT_BYTES}")
        self._client.expect_frames_of(wire.RESULT_HEAD_BYTES + 2 * cap)
        return cap

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        max_output_bytes: int | None = None,
    ) -> Background:
        opened = self._open(self._command(command, env, cwd), self._cap(max_output_bytes))
        return Background(opened, self.guard)

    async def session(self, shell: str = "bash") -> Session:
        todo, flags = self._command([shell], None, None), frames.HAS_STDIN | frames.IS_SESSION
        opened = self._open(todo, self._cap(None), flags)
        return Session(opened, self.guard, self.spec.exec_timeout_s)

    def _open(self, command: Command, cap: int, flags: int = 0) -> Call:
        """A call of a command that runs until somebody ends it."""
        request = wire.exec_request(command, timeout_s=None, cap=cap, flags=flags)
        with self.guard():
            call = self._client.open_call(NEVER)
            call.send(frames.EXEC, request)
            return call

    @asynccontextmanager
    async def verifier(self, keep: Sequence[str] = ()) -> AsyncIterator[StreamSandbox]:
        kept = [file for path in keep for file in await self._files_at(path)]
        fresh = await self._create(self.spec)
        try:
            await fresh._put(kept)
            yield fresh
        finally:
            await fresh.discard()

    async def _files_at(self, path: str) -> list[BoxFile]:
        """A file, or all files of a folder; nothing where there is nothing."""
        try:
            try:
                found = await self._get(path, limit=READ_LIMIT_BYTES, tree=True)
                top = PurePosixPath(path)
            except NotADirectoryError:
                found = await self._get(path, limit=READ_LIMIT_BYTES, tree=False)
                top = PurePosixPath(path).parent
        except FileNotFoundError:
            return []
        return [
            file._replace(path=relative_path(str(top / (file.path or PurePosixPath(path).name))))
            for file in found
        ]

    async def _feed(self, call: Call, stdin: bytes) -> None:
        """All of stdin and its end, never further ahead of the command than the window."""
        sent = 0
        while call.last is None and sent < len(stdin):
            chunk = stdin[sent : sent + min(frames.CHUNK_BYTES, call.stdin_window)]
            if chunk:
                call.send(frames.STDIN, chunk)
                sent += len(chunk)
                call.stdin_window -= len(chunk)
            else:
                await call.change()
        if call.last is None:
            call.send(frames.STDIN)

    def _not_started(self, command: Command, code: int, text: str) -> ExecResult:
        if code in _EXHAUSTED:
            self._lose_full(text)
        where = f" in {command.cwd!r}" if command.cwd != "." else ""
        rc = 127 if code == errno.ENOENT else 126
        return wire.not_run(rc, f"cannot run {command.argv[0]!r}{where}: {text}")

    async def read(self, path: str, *, max_bytes: int = READ_LIMIT_BYTES) -> bytes:
        files = await self._get(path, limit=max_bytes, tree=False)
        if not files:
            self._lose("the box broke its protocol: it sent an end and no file")
        return files[0].data

    async def read_text(self, path: str, *, max_bytes: int = READ_LIMIT_BYTES) -> str:
        return (await self.read(path, max_bytes=max_bytes)).decode("utf-8", "replace")

    async def write(self, path: str, data: bytes | str) -> None:
        content = data.encode() if isinstance(data, str) else bytes(data)
        await self._put([BoxFile(box_path(path, self.spec.workdir), content)])

    async def upload(self, files: Mapping[str, str | bytes] | Path) -> None:
        if isinstance(files, Path):
            await self._put(await asyncio.to_thread(files_of_tree, files))
        else:
            await self._put(files_of_mapping(files))

    async def download(
        self, path: str = ".", *, max_bytes: int = READ_LIMIT_BYTES
    ) -> dict[str, bytes]:
        files = await self._get(path, limit=max_bytes, tree=True)
        return {relative_path(file.path): file.data for file in files}

    async def _put(self, files: Sequence[BoxFile]) -> None:
        with self._call(TRANSFER_TIMEOUT_S, "the time for an upload") as call:
            waiting = bytearray()
            for file in files:
                for data in wire.file_frames(
                    call.id, file.path, file.data, executable=file.executable
                ):
                    waiting += data
                    if len(waiting) >= frames.CHUNK_BYTES:
                        await call.stream(bytes(waiting))
                        waiting.clear()
                if call.last is not None:
                    break
            await call.stream(bytes(waiting) + wire.frame(frames.END, call.id))
            kind, payload = await call.end()
        if kind == frames.ERROR:
            raise_file_error(", ".join(file.path for file in files[:3]), *wire.error(payload))

    async def _get(self, path: str, *, limit: int, tree: bool) -> list[BoxFile]:
        download = Download(limit=limit, max_files=frames.MAX_FILES if tree else 1)
        with self._call(TRANSFER_TIMEOUT_S, "the time for a download") as call:
            request = wire.get_request(box_path(path, self.spec.workdir), limit=limit, tree=tree)
            call.send(frames.GET, request)
            kind, payload = await call.part()
            try:
                while kind not in (frames.END, frames.ERROR):
                    download.feed(kind, payload)
                    kind, payload = await call.part()
            except ValueError as e:
                self._lose(f"the box broke its protocol: {e}")
        if kind == frames.ERROR:
            raise_file_error(path, *wire.error(payload))
        return download.files()

    async def alive(self) -> bool:
        try:
            with self._call(PING_TIMEOUT_S, "the time for a ping") as call:
                call.send(frames.PING)
                await call.end()
        except SandboxLost:
            return False
        return True

    async def close(self) -> None:
        """Idempotent; a caller who is cancelled does not stop the deletion."""
        self._begin_deletion("the box was closed")
        assert self._deletion is not None
        await asyncio.shield(self._deletion)

    async def discard(self) -> None:
        """As `close`, for those who have something else to tell: what is left of it is logged."""
        try:
            await self.close()
        except SandboxError:
            log.exception("could not delete box %s", self.sandbox_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @contextmanager
    def _call(self, timeout_s: float, what: str) -> Iterator[Call]:
        """A call with its deadline. A box that misses it is lost: nobody knows what it does."""
        with self.guard():
            call = self._client.open_call(Deadline.after(timeout_s, what))
            try:
                yield call
            finally:
                call.close()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Whoever finds the box lost has it deleted, and passes on why."""
        try:
            yield
        except SandboxLost:
            self._begin_deletion("the box was lost")
            reason = f"box {self.sandbox_id}: {self._client.lost} {self._host.cause_of_death()}"
            raise SandboxLost(reason.strip()) from None

    def _lose(self, reason: str) -> NoReturn:
        self._begin_deletion(reason)
        raise SandboxLost(reason)

    def _lose_full(self, text: str) -> NoReturn:
        self._lose(f"the box cannot start another process ({text}); {self.spec.pids} are allowed")

    def _begin_deletion(self, reason: str) -> None:
        self._client.close(reason)
        if self._deletion is None:
            self._deletion = asyncio.create_task(self._delete())
            # A lost box may have nobody who closes it and hears of a failure.
            self._deletion.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def _delete(self) -> None:
        try:
            await self._host.delete()
        except OSError as e:  # no file of the box's: whoever reads one would take it for that
            raise SandboxError(f"box {self.sandbox_id} could not be removed: {e}") from e
        finally:
            self._on_deleted()


def raise_file_error(path: str, code: int, text: str) -> NoReturn:
    if code == errno.ELOOP:
        raise UnsafePath(f"{path}: {text}")
    raise OSError(code, text or os.strerror(code), path)
