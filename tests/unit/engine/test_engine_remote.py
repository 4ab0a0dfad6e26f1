"""An engine behind a websocket behaves as the engine itself, and breaks cleanly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import aiohttp.web
import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer
from tiny_models import greedy, prompts
from transformers import PreTrainedModel

from agentrl.engine.engine import (
    Engine,
    EngineError,
    FinishReason,
    GenerateRequest,
    RequestError,
    Sampling,
    TokenChunk,
    WeightSwap,
)
from agentrl.engine.remote import ENDPOINT, EngineServer
from agentrl.engine.remote_client import RECONNECT_TIMEOUT_S, RemoteEngine
from agentrl.engine.torch_engine import TorchEngine

HOST = "127.0.0.1"
TOKEN = "a shared secret"
CONTEXT_TOKENS = 256
pytestmark = pytest.mark.timeout(60)


@pytest_asyncio.fixture
async def engine(paced: PreTrainedModel) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(paced, num_slots=4, context_tokens=CONTEXT_TOKENS, policy_version=3)
    yield engine
    await engine.close()


@pytest_asyncio.fixture
async def server(engine: TorchEngine) -> AsyncIterator[EngineServer]:
    server = EngineServer(engine, host=HOST, token=TOKEN)
    yield server
    await server.close()


@pytest_asyncio.fixture
async def port(server: EngineServer) -> int:
    return await server.start()


@asynccontextmanager
async def client(port: int, token: str = TOKEN) -> AsyncIterator[RemoteEngine]:
    remote = await RemoteEngine.connect(f"ws://{HOST}:{port}", token)
    try:
        yield remote
    finally:
        await remote.close()


def request(
    name: str, ids: list[int], num_tokens: int, sampling: Sampling | None = None
) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        session_id=name,
        ids=ids,
        max_new_tokens=num_tokens,
        sampling=sampling or Sampling(temperature=0),
    )


async def whole(chunks: AsyncIterator[TokenChunk]) -> list[TokenChunk]:
    return [chunk async for chunk in chunks]


async def gather_ids(chunks: AsyncIterator[TokenChunk], ids: list[int]) -> None:
    async for chunk in chunks:
        ids += chunk.ids


def ids_of(chunks: list[TokenChunk]) -> list[int]:
    return [i for chunk in chunks for i in chunk.ids]


async def until_idle(engine: TorchEngine) -> None:
    while True:
        stats = await engine.stats()
        if not stats.running and not stats.waiting:
            return
        await asyncio.sleep(0.001)


async def until_given_up(remote: RemoteEngine) -> None:
    while True:
        if not remote.is_connected:
            return
        await asyncio.sleep(0.001)


async def test_many_requests_share_one_connection(
    port: int, engine: TorchEngine, shared_model: PreTrainedModel
) -> None:
    contexts = prompts(*range(1, 40, 3))
    async with client(port) as remote:
        assert isinstance(remote, Engine)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(whole(remote.generate(request(str(i), ids, 20))))
                for i, ids in enumerate(contexts)
            ]
        for ids, task in zip(contexts, tasks, strict=True):
            chunks = task.result()
            assert ids_of(chunks) == greedy(shared_model, ids, 20)
            assert chunks[-1].finish_reason is FinishReason.LENGTH
            assert {v for chunk in chunks for v in chunk.policy_versions} == {3}
        assert await remote.stats() == await engine.stats()


async def test_a_request_arrives_as_it_was_sent(port: int, engine: TorchEngine) -> None:
    """The same sampling here and there, floats and stop ids to the last bit."""
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=50, seed=2**63, stop_ids=(1, 2, 3))
    async with client(port) as remote:
        theirs = await whole(remote.generate(request("remote", [5, 6, 7], 40, sampling)))
    ours = await whole(engine.generate(request("local", [5, 6, 7], 40, sampling)))
    assert ids_of(theirs) == ids_of(ours)
    logprobs = [[x for chunk in chunks for x in chunk.logprobs] for chunks in (theirs, ours)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-6)
    assert theirs[-1].finish_reason is ours[-1].finish_reason


async def test_commands_reach_the_engine(port: int, engine: TorchEngine) -> None:
    async with client(port) as remote:
        await remote.prefill("s", list(range(50)))
        assert (await engine.stats()).tokens_prefilled == 50
        await remote.release("s")
        assert (await remote.stats()).cached_tokens == 0
        stream = remote.generate(request("a", [1], 250))
        await anext(stream)
        await remote.pause()
        before = await remote.stats()
        await asyncio.sleep(0.02)
        assert (await remote.stats()).tokens_generated == before.tokens_generated
        await remote.resume()
        await remote.abort("a")
        assert (await whole(stream))[-1].finish_reason is FinishReason.ABORTED
        assert await remote.abort_all() == 0
        with pytest.raises(EngineError, match="the process that owns the engine"):
            await remote.load_weights(4, {}, swap=WeightSwap.CONTINUE)


async def test_a_wrong_request_is_refused_and_the_connection_goes_on(port: int) -> None:
    async with client(port) as remote:
        with pytest.raises(RequestError, match="vocabulary"):
            await anext(remote.generate(request("a", [9999], 5)))
        with pytest.raises(RequestError, match="no ids"):
            await remote.prefill("s", [])
        assert len(ids_of(await whole(remote.generate(request("a", [9], 5))))) == 5


async def test_a_reader_that_goes_away_aborts_its_turn(port: int, engine: TorchEngine) -> None:
    async with client(port) as remote:
        stream = remote.generate(request("a", [1], 250))
        await anext(stream)
        await stream.aclose()
        await until_idle(engine)
        assert (await engine.stats()).tokens_generated < 250


async def test_a_reader_that_is_cancelled_while_the_connection_breaks_is_cancelled(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in its place would be taken for a lost place, and the turn would go on elsewhere."""

    async def broken(_: bytes) -> None:
        raise ConnectionResetError("cannot write to a closing transport")

    async with client(port) as remote:
        stream = remote.generate(request("a", [1], 250))
        await anext(stream)
        reading = asyncio.create_task(whole(stream))
        with monkeypatch.context() as patched:
            patched.setattr(remote._socket, "send_bytes", broken)
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading


async def test_a_client_that_goes_away_leaves_nothing_running(
    port: int, engine: TorchEngine
) -> None:
    async with client(port) as remote, client(port) as other:
        streams = [remote.generate(request(str(i), [i], 250)) for i in range(9)]
        await anext(streams[0])
        await asyncio.wait([asyncio.ensure_future(anext(s)) for s in streams[1:4]])
        theirs = asyncio.create_task(whole(other.generate(request("other", [7], 30))))
        await remote.close()
        assert len(ids_of(await theirs)) == 30
        await until_idle(engine)
        assert (await engine.stats()).tokens_generated < 9 * 250
        for stream in streams[:4]:
            with pytest.raises(EngineError):
                await whole(stream)


async def test_a_server_that_ends_is_an_engine_error(
    port: int, server: EngineServer, engine: TorchEngine
) -> None:
    async with client(port) as remote:
        stream = remote.generate(request("a", [1], 250))
        await anext(stream)
        await server.close()
        with pytest.raises(EngineError, match="connection is closed"):
            await whole(stream)
        with pytest.raises(EngineError, match="connection is closed"):
            await remote.stats()
        await until_idle(engine)


async def test_a_cut_connection_delivers_what_had_arrived(
    port: int, engine: TorchEngine, shared_model: PreTrainedModel
) -> None:
    async with Cable(port) as cable, client(cable.port) as remote:
        stream = remote.generate(request("a", [1, 2], 250))
        ids = list((await anext(stream)).ids)
        waiting = asyncio.create_task(remote.abort("nothing"))
        cable.cut()
        with pytest.raises(EngineError, match="connection is closed"):
            await gather_ids(stream, ids)
        assert ids
        assert ids == greedy(shared_model, [1, 2], len(ids))
        with pytest.raises(EngineError):
            await waiting
        await until_idle(engine)


async def test_a_broken_engine_tells_its_clients_and_is_given_up(
    port: int, model: PreTrainedModel
) -> None:
    async with client(port) as remote, client(port) as other:
        stream = remote.generate(request("a", [1, 2], 250))
        await anext(stream)
        model.model.norm.weight.data.fill_(float("nan"))
        with pytest.raises(EngineError, match="not finite"):
            await whole(stream)
        with pytest.raises(EngineError):
            await other.stats()
        await until_given_up(remote)
        await until_given_up(other)


async def test_nobody_gets_in_without_the_secret(port: int) -> None:
    with pytest.raises(EngineError, match="401"):
        await RemoteEngine.connect(f"ws://{HOST}:{port}", "guess")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(f"http://{HOST}:{port}/engine")


async def test_a_server_that_is_not_there_is_an_engine_error(unused_tcp_port: int) -> None:
    with pytest.raises(EngineError, match="no connection"):
        await RemoteEngine.connect(f"ws://{HOST}:{unused_tcp_port}", TOKEN)


class Cable:
    """A TCP relay that can be cut without a goodbye."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self.is_open = asyncio.Event()
        """Unset: what connects from now on hears nothing."""
        self.is_open.set()
        self._writers: list[asyncio.StreamWriter] = []
        self._relays: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Cable":
        self._server = await asyncio.start_server(self._relay, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._relays += filter(None, [asyncio.current_task()])
        await self.is_open.wait()
        far_reader, far_writer = await asyncio.open_connection(HOST, self._to_port)
        self._writers.append(far_writer)
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass


async def test_a_connection_that_broke_is_made_again(
    port: int, shared_model: PreTrainedModel
) -> None:
    async with Cable(port) as cable, client(cable.port) as remote:
        stream = remote.generate(request("a", [1, 2], 250))
        await anext(stream)
        cable.cut()
        with pytest.raises(EngineError, match="connection is closed"):
            await whole(stream)
        assert remote.is_connected
        ids = ids_of(await whole(remote.generate(request("b", [1, 2], 5))))
        assert ids == greedy(shared_model, [1, 2], 5)


async def test_whoever_moves_away_does_not_wait_for_a_connection_that_is_made_again(
    port: int,
) -> None:
    """Its turn has a place elsewhere by then."""
    async with Cable(port) as cable, client(cable.port) as remote:
        cable.is_open.clear()
        waiting = asyncio.create_task(remote.abort("nothing"))
        cable.cut()
        with pytest.raises(EngineError):
            await waiting
        async with asyncio.timeout(RECONNECT_TIMEOUT_S / 2):
            await remote.release("s")
        assert remote.is_connected


async def test_an_engine_that_drops_each_connection_at_once_is_given_up() -> None:
    num_dialled = 0

    async def drop(request: aiohttp.web.Request) -> aiohttp.web.WebSocketResponse:
        nonlocal num_dialled
        num_dialled += 1
        socket = aiohttp.web.WebSocketResponse()
        await socket.prepare(request)
        return socket

    app = aiohttp.web.Application()
    app.router.add_get(ENDPOINT, drop)
    async with TestServer(app) as dropping, client(dropping.port or 0) as remote:
        await asyncio.sleep(0.5)
        assert not remote.is_connected
    assert num_dialled == 2


async def test_an_engine_that_took_its_leave_is_given_up(port: int, server: EngineServer) -> None:
    async with client(port) as remote:
        await server.close()
        with pytest.raises(EngineError, match="connection is closed"):
            await remote.stats()
        assert not remote.is_connected


async def test_a_fault_in_reading_leaves_nobody_waiting_and_is_raised(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: RemoteEngine, message: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(RemoteEngine, "_receive", fail)
    remote = await RemoteEngine.connect(f"ws://{HOST}:{port}", TOKEN)
    with pytest.raises(EngineError):
        await remote.stats()
    with pytest.raises(KeyError, match="ours"):
        await remote.close()
