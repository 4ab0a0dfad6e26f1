"""An engine behind a websocket, for rollouts in other processes and on other machines.

One connection carries all requests of a client, as binary JSON. Whatever the engine has ready at
one moment leaves in one message, however many requests it belongs to: the cost of a message is paid
once a decode step, not once a token. Weights do not travel here; the process that owns the engine
loads them.

    client   {op: "generate", request}
             {op, number, arguments}                       any other method of the engine
    server   {chunks: [[request_id, ids, logprobs, policy_versions, finish_reason, error]],
              answers: [[number, value, error]]}           error: null or [kind, text]

Invariants
- A client that is gone has no running requests: they are aborted with its connection.
- Nobody without the shared secret gets past the handshake.
- The chunks of a request, and the error that ends it, leave in the order they happened.
- Where the engine fails, it has failed for good: the connection ends, and its client knows that.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Mapping
from typing import Any

import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from agentrl.engine.engine import Engine, EngineError, GenerateRequest, RequestError, Sampling

ENDPOINT = "/engine"
HEARTBEAT_S = 20.0
"""A peer that leaves a ping unanswered for half of this is gone. Generous, because a busy machine
holds up healthy processes for seconds."""
MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class EngineServer:
    """Serves one engine, which stays its owner's to close."""

    def __init__(self, engine: Engine, *, host: str, token: str) -> None:
        """`token` is the secret that clients must show."""
        self._engine = engine
        self._host = host
        self._token = token
        self._sockets: set[web.WebSocketResponse] = set()
        app = web.Application()
        app.router.add_get(ENDPOINT, self._serve)
        app.on_shutdown.append(self._hang_up)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> int:
        """Listen on a free port, and return it."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, 0).start()
        port: int = self._runner.addresses[0][1]
        return port

    async def close(self) -> None:
        """End every connection, and with it its requests."""
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        shown = request.headers.get("Authorization", "")
        if not hmac.compare_digest(shown.encode(), f"Bearer {self._token}".encode()):
            raise web.HTTPUnauthorized
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MAX_MESSAGE_BYTES)
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            await _Connection(self._engine, socket).run()
        finally:
            self._sockets.remove(socket)
        return socket

    async def _hang_up(self, _: web.Application) -> None:
        for socket in list(self._sockets):
            await socket.close(code=WSCloseCode.GOING_AWAY)


class _Connection:
    """One client, until it is gone."""

    def __init__(self, engine: Engine, socket: web.WebSocketResponse) -> None:
        self._engine = engine
        self._socket = socket
        self._chunks: list[tuple[Any, ...]] = []
        self._answers: list[tuple[Any, ...]] = []
        self._has_news = asyncio.Event()
        self._has_engine = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = {group.create_task(self._send())}
            async for message in self._socket:
                if message.type is not WSMsgType.BINARY:
                    break
                task = group.create_task(self._handle(orjson.loads(message.data)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            for task in list(tasks):
                task.cancel()

    async def _send(self) -> None:
        """All that gathers while one message is on its way goes with the next."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            message = {"chunks": self._chunks, "answers": self._answers}
            self._chunks, self._answers = [], []
            try:
                await self._socket.send_bytes(orjson.dumps(message))
            except ConnectionError:
                return  # the reading side ends too, and everything else with it
            if not (self._has_engine or self._has_news.is_set()):
                await self._socket.close(code=WSCloseCode.GOING_AWAY)
                return

    async def _handle(self, message: Mapping[str, Any]) -> None:
        if message["op"] == "generate":
            await self._generate(_request(message["request"]))
        else:
            await self._answer(message["op"], message["number"], message["arguments"])

    async def _generate(self, request: GenerateRequest) -> None:
        name = request.request_id
        try:
            async for chunk in self._engine.generate(request):
                columns = (chunk.ids, chunk.logprobs, chunk.policy_versions)
                self._chunks.append((name, *columns, chunk.finish_reason, None))
                self._has_news.set()
        except (RequestError, EngineError) as error:
            self._chunks.append((name, (), (), (), None, self._packed(error)))
            self._has_news.set()

    async def _answer(self, op: str, number: int, arguments: list[Any]) -> None:
        try:
            value = await self._call(op, arguments)
            self._answers.append((number, value, None))
        except (RequestError, EngineError) as error:
            self._answers.append((number, None, self._packed(error)))
        self._has_news.set()

    def _packed(self, error: RequestError | EngineError) -> tuple[str, str]:
        if isinstance(error, RequestError):
            return "request", str(error)
        self._has_engine = False
        return "engine", str(error)

    def _call(self, op: str, arguments: list[Any]) -> Awaitable[object]:
        engine = self._engine
        methods = (
            engine.abort,
            engine.abort_all,
            engine.pause,
            engine.resume,
            engine.prefill,
            engine.release,
            engine.stats,
        )
        (method,) = (method for method in methods if method.__name__ == op)
        called: Awaitable[object] = method(*arguments)
        return called


def _request(fields: dict[str, Any]) -> GenerateRequest:
    sampling = fields.pop("sampling")
    stop_ids = tuple(sampling.pop("stop_ids"))
    return GenerateRequest(**fields, sampling=Sampling(**sampling, stop_ids=stop_ids))
