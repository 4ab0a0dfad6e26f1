"""A box that speaks the protocol itself gets no more of our memory than was asked for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from itertools import repeat
from typing import Any

import pytest

from sandboxes import SandboxLost, SandboxSpec, background
from sandboxes.box import StreamSandbox
from sandboxes.boxd import frames
from sandboxes.client import BoxClient
from sandboxes.engine.control_shell import ControlShell
from sandboxes.wire import frame

MIB = 1024 * 1024
FILE, CHUNK, END, RESULT = frames.FILE, frames.CHUNK, frames.END, frames.RESULT


class Nowhere:
    box_id = "box-of-the-test"

    async def start(self, client: BoxClient) -> None:
        raise AssertionError

    async def delete(self) -> None: ...

    def cause_of_death(self) -> str:
        return ""


class Liar:
    """The other end of a box's stream."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        stream.setblocking(False)
        self.num_sent = 0

    async def call_id(self) -> int:
        """Of the next request."""
        loop = asyncio.get_running_loop()
        return int.from_bytes((await loop.sock_recv(self._stream, MIB))[1:5], "big")

    async def send(self, answer: Iterator[tuple[int, bytes]], call_id: int) -> None:
        """Until nobody listens any more."""
        loop = asyncio.get_running_loop()
        for kind, payload in answer:
            data = frame(kind, call_id, payload)
            try:
                await loop.sock_sendall(self._stream, data)
            except OSError:
                return
            self.num_sent += len(data)
            assert self.num_sent < 100 * MIB, "it would be listened to for ever"


@pytest.fixture
async def ends() -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    theirs.close()


@pytest.fixture
async def liar(ends: tuple[socket.socket, socket.socket]) -> Liar:
    return Liar(ends[1])


@pytest.fixture
async def box(ends: tuple[socket.socket, socket.socket]) -> AsyncIterator[StreamSandbox]:
    async def create(spec: SandboxSpec) -> StreamSandbox:
        raise AssertionError

    client = BoxClient()
    await client.connect(ends[0])
    async with StreamSandbox(
        spec=SandboxSpec(), client=client, host=Nowhere(), create=create, on_deleted=lambda: None
    ) as box:
        yield box


Ask = Callable[[StreamSandbox], Coroutine[Any, Any, Any]]


async def answered(box: StreamSandbox, liar: Liar, ask: Ask, *answer: tuple[int, bytes]) -> None:
    """The last frame is sent for ever."""

    async def lie() -> None:
        call_id = await liar.call_id()
        await liar.send(iter(answer[:-1]), call_id)
        await liar.send(repeat(answer[-1]), call_id)

    lying = asyncio.create_task(lie())
    async with asyncio.timeout(20):
        with pytest.raises(SandboxLost, match="broke its protocol"):
            await ask(box)
        await lying
    assert not await box.alive()


def download(box: StreamSandbox) -> Coroutine[Any, Any, Any]:
    return box.download(max_bytes=MIB)


def read(box: StreamSandbox) -> Coroutine[Any, Any, Any]:
    return box.read("a")


def run(box: StreamSandbox) -> Coroutine[Any, Any, Any]:
    return box.exec(["true"])


@pytest.mark.parametrize(
    "answer",
    [
        ((FILE, b"-a"), (CHUNK, bytes(64 * 1024))),
        ((CHUNK, bytes(64 * 1024)),),
        ((FILE, b"-a"),),
        ((FILE, b"-" + b"a" * 100_000),),
        ((frames.TURN, bytes(100)),),
        ((RESULT, bytes(100)),),
    ],
    ids=["bytes of one file", "bytes of none", "files", "names", "turns", "results"],
)
async def test_a_download_is_no_longer_than_was_asked_for(
    box: StreamSandbox, liar: Liar, answer: tuple[tuple[int, bytes], ...]
) -> None:
    await answered(box, liar, download, *answer)


@pytest.mark.parametrize(
    "answer", [((END, b""),), ((FILE, b"-a"), (FILE, b"-b"), (END, b""))], ids=["none", "two"]
)
async def test_a_file_that_is_read_is_one(
    box: StreamSandbox, liar: Liar, answer: tuple[tuple[int, bytes], ...]
) -> None:
    await answered(box, liar, read, *answer)


@pytest.mark.parametrize(
    "answer",
    [(CHUNK, bytes(64 * 1024)), (FILE, b""), (frames.PEEKED, bytes(1000))],
    ids=["bytes", "nothing", "looks"],
)
async def test_what_a_command_has_no_use_for_is_not_kept(
    box: StreamSandbox, liar: Liar, answer: tuple[int, bytes]
) -> None:
    await answered(box, liar, run, answer)


async def test_a_result_that_is_none_is_no_result(box: StreamSandbox, liar: Liar) -> None:
    await answered(box, liar, run, (RESULT, b""))


async def test_a_kill_that_nobody_answers_ends_with_the_box(
    box: StreamSandbox, liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "ANSWER_TIMEOUT_S", 0.1)
    command = await box.spawn("sleep 60")
    async with asyncio.timeout(20):
        with pytest.raises(SandboxLost, match="did not answer within the time for a kill"):
            await command.kill()
    assert not await box.alive()


async def test_a_control_shell_that_talks_is_not_listened_to() -> None:
    shell = ControlShell()
    for _ in range(2):
        shell.data_received(b"x" * 10_000 + b"\n")
    assert shell.lost == "the box's main process talks without being asked"
