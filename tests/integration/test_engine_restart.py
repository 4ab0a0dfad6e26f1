"""An engine that dies under a box: a typed error in time, and no box left once it is back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from private_engine import PrivateEngine, private_engine

from sandboxes import SandboxError, SandboxLost, SandboxSpec
from sandboxes.engine.backend import DockerBackend
from sandboxes.engine.shell_box import ShellBox

pytestmark = [pytest.mark.docker, pytest.mark.slow]

IMAGES = ("agentrl-base", "agentrl-shell")
SPEC = SandboxSpec()


@pytest.fixture(scope="module")
def engine() -> Iterator[PrivateEngine]:
    with private_engine(IMAGES) as engine:
        yield engine


@pytest.fixture
async def backend(engine: PrivateEngine) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(run_id="restart", engine=await asyncio.to_thread(engine.connect))
    yield backend
    await backend.close()
    await none_left(engine)


async def none_left(engine: PrivateEngine) -> None:
    async with asyncio.timeout(60):
        while await asyncio.to_thread(engine.boxes):  # noqa: ASYNC110  # an engine sets no event
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_an_engine_that_restarts_loses_its_boxes_and_leaves_none(
    engine: PrivateEngine, backend: DockerBackend, image: str, how: signal.Signals
) -> None:
    box = await backend.create(replace(SPEC, image=image))
    assert isinstance(box, ShellBox) == (image != SPEC.image)
    call = asyncio.create_task(box.exec("sleep 300", timeout_s=250))
    await asyncio.sleep(0.3)
    try:
        await asyncio.to_thread(engine.stop, how)
        with pytest.raises(SandboxLost, match=box.sandbox_id):
            await asyncio.wait_for(call, 30)
        with pytest.raises(SandboxLost):
            await box.exec(["true"])
        with pytest.raises(SandboxError, match=r"engine"):
            await asyncio.wait_for(backend.create(SPEC), 30)
        assert not await box.alive()
    finally:
        await asyncio.to_thread(engine.start)
    await backend.reap()
    await none_left(engine)
    async with await backend.create(SPEC) as again:
        assert (await again.exec(["echo", "again"])).out == b"again\n"


async def test_a_creation_that_times_out_and_succeeds_later_is_swept_up(
    engine: PrivateEngine, backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxes.engine.container.DELETE_TIMEOUT_S", 1)
    async with await backend.create(SPEC):
        pass
    backend.start_timeout_s = 1
    engine.send(signal.SIGSTOP)
    try:
        with pytest.raises(SandboxError, match=r"docker box|did not remove"):
            await asyncio.wait_for(backend.create(SPEC), 30)
        assert backend.boxes == {}
    finally:
        engine.send(signal.SIGCONT)
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(engine.boxes):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)
    assert len(await backend.reap()) == 1
    await none_left(engine)


async def test_a_backend_can_be_closed_without_its_engine(engine: PrivateEngine) -> None:
    backend = DockerBackend(run_id="restart", engine=await asyncio.to_thread(engine.connect))
    await backend.create(SPEC)
    await asyncio.to_thread(engine.stop, signal.SIGKILL)
    try:
        await asyncio.wait_for(backend.close(), 60)
    finally:
        await asyncio.to_thread(engine.start)
    sweeper = DockerBackend(run_id="restart", engine=await asyncio.to_thread(engine.connect))
    sweeper.backend_id = backend.backend_id  # its owner lives: nobody else would touch it
    await sweeper.reap()
    await none_left(engine)
    await sweeper.close()
