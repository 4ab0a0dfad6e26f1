"""An engine that misbehaves, on a unix socket: each fault is a typed error in time, no box stays.

The engine here speaks just enough of the API to be believed; each test breaks one thing.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes import SandboxError, SandboxLost, SandboxPool, SandboxSpec
from sandboxes.box import StreamSandbox
from sandboxes.boxd import frames
from sandboxes.bundle import boot_bytes
from sandboxes.engine import images
from sandboxes.engine.backend import DockerBackend
from sandboxes.engine.connection import Address, Engine
from sandboxes.ownership import this_process
from sandboxes.wire import frame

SPEC = SandboxSpec(image="some-image")


class FakeEngine:
    """Answers the requests that a box needs; `fault` names the one thing that goes wrong."""

    def __init__(self) -> None:
        self.fault = ""
        self.backend_id = ""
        self.containers: set[str] = set()
        self.attached: asyncio.StreamWriter | None = None
        self.requests: list[str] = []
        self.has_image = True
        self.may_pull = asyncio.Event()
        self.on_event: Callable[[str], None] = lambda event: None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, target, _ = head.decode().split(" ", 2)
                length = [
                    line
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                ]
                if length:
                    await reader.readexactly(int(length[0].split(b":")[1]))
                await self.answer(method, target, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(
        self, method: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        path = re.sub(r"^/(v[\d.]+/)?", "", target.split("?")[0])
        self.requests.append(f"{method} {path}")
        self.on_event("before")
        match method, path.split("/"):
            case _, ["version"] | ["info"]:
                reply(writer, 200, {"ApiVersion": "1.41", "CgroupVersion": "2"})
            case _, ["images", "create"]:
                await self.pull(writer)
            case _, ["images", _, "json"] if not self.has_image:
                reply(writer, 404, {"message": "No such image"})
            case _, ["images", _, "json"]:
                reply(writer, 200, {"Config": {"WorkingDir": ""}})
            case _, ["containers", "create"]:
                await self.create(target, writer)
            case "GET", ["containers", "json"] if self.fault == "lists nothing":
                reply(writer, 500, {"message": "the database is locked"})
            case "GET", ["containers", "json"]:
                reply(writer, 200, [self.listed(name) for name in self.containers])
            case "DELETE", ["containers", "removed"]:
                reply(writer, 404, {"message": "No such container: removed"})
            case _, ["containers", _, "attach"]:
                await self.attach(reader, writer)
            case _, ["containers", _, "start"]:
                if self.fault == "start refused":
                    reply(writer, 500, {"message": "cannot start: no such thing"})
                else:
                    reply(writer, 204)
            case "DELETE", ["containers", _] if self.fault == "removes nothing":
                reply(writer, 500, {"message": "device or resource busy"})
            case "DELETE", ["containers", name]:
                self.containers.discard(name)
                reply(writer, 204)
            case _:
                reply(writer, 404, {"message": f"unexpected {method} {path}"})
        self.on_event("after")
        await writer.drain()

    def listed(self, name: str) -> dict[str, object]:
        labels = {"agentrl.backend": self.backend_id, "agentrl.owner": str(this_process())}
        names = [] if name == "removed" else [f"/{name}"]
        return {"Id": name, "Names": names, "Labels": labels, "Created": 0, "State": "x"}

    async def pull(self, writer: asyncio.StreamWriter) -> None:
        """Says that it is at it until it may end, or nobody listens."""
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not self.may_pull.is_set():
            writer.write(chunk({"status": "Downloading"}))
            await writer.drain()
            await asyncio.sleep(0.02)
        if self.fault == "pull breaks off":
            writer.write(chunk({"error": "unexpected EOF"}))
        else:
            self.has_image = True
        writer.write(b"0\r\n\r\n")

    async def create(self, target: str, writer: asyncio.StreamWriter) -> None:
        if self.fault == "create refused":
            reply(writer, 500, {"message": "the disk is full"})
            return
        if self.fault == "create is slow":
            await asyncio.sleep(0.5)
        name = target.split("name=")[1].split("&")[0]
        self.containers.add(name)
        reply(writer, 201, {"Id": name, "Warnings": []})

    async def attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attached = writer
        if self.fault == "attach refused":
            reply(writer, 404, {"message": "No such container"})
            return
        if self.fault == "attach hangs":
            await reader.read()
            return
        writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        await reader.readexactly(len(boot_bytes(same_python=False)))
        if self.fault == "python dies":
            writer.write(stderr(b"Fatal Python error"))
            writer.close()
            return
        writer.write(stdout(frame(frames.READY, 0, bytes(4))))
        while data := await reader.read(65536):
            if self.fault == "half-closed":
                writer.write(stdout(frame(frames.RESULT, 1, bytes(60))[:20]))
                writer.close()
                return
            if self.fault == "garbage":
                writer.write(stdout(b"\xff" * 64))
            elif data[0] == frames.PING:
                # A frame in pieces, each in an engine's frame of its own.
                for byte in frame(frames.PONG, int.from_bytes(data[1:5], "big")):
                    writer.write(stdout(bytes([byte])))


def chunk(said: object) -> bytes:
    data = json.dumps(said).encode() + b"\r\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def stdout(data: bytes) -> bytes:
    return b"\1\0\0\0" + len(data).to_bytes(4, "big") + data


def stderr(data: bytes) -> bytes:
    return b"\2\0\0\0" + len(data).to_bytes(4, "big") + data


def reply(writer: asyncio.StreamWriter, status: int, body: object = None) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    fake = FakeEngine()
    server = await asyncio.start_unix_server(fake.serve, tmp_path / "engine.sock")
    yield fake
    server.close()


@pytest.fixture
async def backend(engine: FakeEngine, tmp_path: Path) -> AsyncIterator[DockerBackend]:
    address = Address(f"http+unix://{tmp_path}/engine.sock")
    connection = await asyncio.to_thread(Engine, address)
    backend = DockerBackend(run_id="test", engine=connection)
    backend.start_timeout_s = 2
    engine.backend_id = backend.backend_id
    yield backend
    await backend.close()


@pytest.fixture
def no_image(engine: FakeEngine) -> FakeEngine:
    engine.has_image = False
    return engine


async def test_an_image_may_take_longer_than_a_box_may_to_start(
    no_image: FakeEngine, backend: DockerBackend
) -> None:
    backend.start_timeout_s = 0.5
    creation = asyncio.create_task(backend.create(SPEC))
    await asyncio.sleep(1.0)
    assert not creation.done()
    no_image.may_pull.set()
    async with asyncio.timeout(20), await creation as box:
        assert await box.alive()


async def test_nor_does_a_lease_run_out_of_time_meanwhile(
    no_image: FakeEngine, backend: DockerBackend
) -> None:
    pool = SandboxPool(backend, acquire_timeout_s=0.5)
    leasing = asyncio.create_task(pool.acquire(SPEC))
    await asyncio.sleep(1.0)
    no_image.may_pull.set()
    async with asyncio.timeout(20):
        pool.release(await leasing)
        await pool.aclose()


async def test_an_image_is_pulled_once_whoever_gives_up_waiting(
    no_image: FakeEngine, backend: DockerBackend
) -> None:
    for _ in range(12):  # more than the engine has threads
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(backend.create(SPEC), 0.05)
    no_image.may_pull.set()
    async with asyncio.timeout(20), await backend.create(SPEC):
        assert sum("images/create" in request for request in no_image.requests) == 1


@pytest.mark.parametrize("fault", ["pull breaks off", "pull is endless"])
async def test_an_image_that_cannot_be_pulled_says_what_to_do(
    no_image: FakeEngine, backend: DockerBackend, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "PULL_TIMEOUT_S", 0.5)
    no_image.fault = fault
    if fault == "pull breaks off":
        no_image.may_pull.set()
    reason = "unexpected EOF" if fault == "pull breaks off" else r"not within 0\.5 s"
    for _ in range(2):
        with pytest.raises(SandboxError, match=rf"'some-image'.*{reason}.*docker/build-base\.sh"):
            await asyncio.wait_for(backend.create(SPEC), 20)
    no_image.fault = ""
    no_image.may_pull.set()
    async with asyncio.timeout(20), await backend.create(SPEC):
        pass


async def test_no_image_is_pulled_for_a_box_that_is_refused(
    no_image: FakeEngine, backend: DockerBackend
) -> None:
    with pytest.raises(ValueError, match="network allow-list"):
        await backend.create(replace(SPEC, network=("example.com",)))
    assert not any("images" in request for request in no_image.requests)


async def test_a_pull_does_not_keep_a_backend_from_closing(
    no_image: FakeEngine, backend: DockerBackend
) -> None:
    creation = asyncio.create_task(backend.create(SPEC))
    while "POST images/create" not in no_image.requests:  # noqa: ASYNC110  # no event there
        await asyncio.sleep(0.01)
    creation.cancel()
    await asyncio.wait_for(backend.close(), 20)


async def test_frames_in_any_pieces_are_put_together(
    engine: FakeEngine, backend: DockerBackend
) -> None:
    async with await backend.create(SPEC) as box:
        assert await box.alive()
    assert engine.containers == set()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("create refused", "the disk is full"),
        ("attach refused", "No such container"),
        ("attach hangs", "no answer within 2 s"),
        ("start refused", "no such thing"),
        ("python dies", "Fatal Python error"),
    ],
)
async def test_a_box_that_cannot_start_says_why_and_is_removed(
    engine: FakeEngine, backend: DockerBackend, fault: str, reason: str
) -> None:
    engine.fault = fault
    with pytest.raises(SandboxError, match=reason):
        await asyncio.wait_for(backend.create(SPEC), 20)
    assert engine.containers == set()
    assert backend.boxes == {}


@pytest.mark.parametrize("fault", ["half-closed", "garbage"])
async def test_a_stream_that_breaks_is_a_lost_box_not_a_result(
    engine: FakeEngine, backend: DockerBackend, fault: str
) -> None:
    box = await backend.create(SPEC)
    engine.fault = fault
    with pytest.raises(SandboxLost, match=box.sandbox_id):
        await asyncio.wait_for(box.exec(["true"]), 20)
    await box.close()
    assert engine.containers == set()


async def test_a_box_that_falls_silent_is_given_up_in_time(
    engine: FakeEngine, backend: DockerBackend
) -> None:
    box = await backend.create(SPEC)
    with pytest.raises(SandboxLost, match="did not answer"):
        await asyncio.wait_for(box.exec(["true"], timeout_s=0.2), 20)
    await box.close()
    assert engine.containers == set()


async def test_a_creation_that_succeeds_after_it_was_cancelled_is_undone(
    engine: FakeEngine, backend: DockerBackend
) -> None:
    engine.fault = "create is slow"
    creation = asyncio.create_task(backend.create(SPEC))
    while "POST containers/create" not in engine.requests:  # noqa: ASYNC110  # no event there
        await asyncio.sleep(0.01)
    creation.cancel()
    await asyncio.gather(creation, return_exceptions=True)
    assert creation.cancelled()
    assert engine.containers == set()
    assert any(request.startswith("DELETE") for request in engine.requests)


async def test_a_creation_cancelled_at_any_request_leaves_nothing(
    engine: FakeEngine, backend: DockerBackend
) -> None:
    async with await backend.create(SPEC):  # the image is known and the reaper runs
        pass
    for number in range(12):
        result = await created_but_cancelled(engine, backend, after_events=number)
        if isinstance(result, BaseException):
            assert isinstance(result, asyncio.CancelledError), result
        else:
            await result.close()
        async with asyncio.timeout(20):
            while engine.containers or backend.boxes:  # noqa: ASYNC110  # no event there
                await asyncio.sleep(0.01)
    assert not isinstance(result, BaseException), "the last ones are cancelled too late to notice"


async def created_but_cancelled(
    engine: FakeEngine, backend: DockerBackend, *, after_events: int
) -> StreamSandbox | BaseException:
    """Cancelled again at each event that follows, as somebody who is in a hurry does."""
    creation = asyncio.create_task(backend.create(SPEC))
    events = iter(range(after_events))

    def cancel(event: str) -> None:
        if next(events, None) is None:
            creation.cancel()

    engine.on_event = cancel
    (result,) = await asyncio.wait_for(asyncio.gather(creation, return_exceptions=True), 20)
    engine.on_event = lambda event: None
    return result


async def test_a_box_that_cannot_be_removed_is_an_error_and_swept_up_later(
    engine: FakeEngine, backend: DockerBackend
) -> None:
    box = await backend.create(SPEC)
    engine.fault = "removes nothing"
    with pytest.raises(SandboxError, match="resource busy"):
        await asyncio.wait_for(box.close(), 20)
    assert backend.boxes == {}
    assert await backend.reap() == []
    engine.fault = ""
    assert await backend.reap() == [box.sandbox_id]
    assert engine.containers == set()


async def test_a_sweep_that_the_engine_refuses_is_a_typed_error(
    engine: FakeEngine, backend: DockerBackend
) -> None:
    engine.fault = "lists nothing"
    with pytest.raises(SandboxError, match="the database is locked"):
        await backend.reap()
    async with await backend.create(SPEC) as box:  # whose reaper meets the same
        assert await box.alive()


async def test_a_box_that_an_engine_has_removed_and_lists_still_is_removed_by_nobody(
    engine: FakeEngine, backend: DockerBackend
) -> None:
    engine.containers = {"removed", "forgotten"}
    assert await backend.reap() == ["forgotten"]
