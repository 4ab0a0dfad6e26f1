"""The client's side of an engine behind a websocket (see `agentrl.engine.remote`).

What has arrived is delivered even when the connection breaks right after it; then every running
request raises `EngineError`, so that a rollout keeps its tokens and asks for another place. A
connection that broke although the engine is there is made again, and requests wait for that; one
whose engine took its leave, does not answer, or drops it again soon, is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import count
from math import inf
from typing import Any, NoReturn

import aiohttp
import orjson
import structlog
from aiohttp import WSCloseCode

from agentrl.engine.engine import (
    EngineError,
    EngineStats,
    FinishReason,
    GenerateRequest,
    RequestError,
    TokenChunk,
    WeightSwap,
    WeightUpdate,
)
from agentrl.engine.remote import ENDPOINT, HEARTBEAT_S, MAX_MESSAGE_BYTES
from agentrl.engine.stream import TokenStream

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 30.0
RECONNECT_TIMEOUT_S = 10.0
STEADY_S = 10.0
"""A connection that was made again must hold for so long to be made again once more."""
CALL_TIMEOUT_S = 60.0


class RemoteEngine:
    """Implements `Engine`, apart from loading weights. Made by `connect`."""

    def __init__(
        self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse, url: str
    ) -> None:
        self._session = session
        self._socket = socket
        self.url = url
        self._streams: dict[str, TokenStream] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()
        self._is_up = asyncio.Event()
        """The connection holds, or was given up."""
        self._is_up.set()
        self._failure: EngineError | None = None
        self._reading = asyncio.create_task(self._keep(), name=f"engine {url}")

    @property
    def is_connected(self) -> bool:
        """Or about to be again."""
        return self._failure is None

    @classmethod
    async def connect(cls, url: str, token: str) -> RemoteEngine:
        """`url` is `ws://host:port`. Raises `EngineError`."""
        session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"})
        try:
            return cls(session, await _dial(session, url, CONNECT_TIMEOUT_S), url)
        except BaseException:
            await session.close()
            raise

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        name = request.request_id
        if name in self._streams:
            raise RequestError(f"request {name}: this id is in use; ids are unique per call")
        await self._is_up.wait()
        stream = self._streams[name] = TokenStream()
        try:
            await self._send({"op": "generate", "request": request})
            while True:
                chunk = await stream.next_chunk()
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            del self._streams[name]
            if not (stream.is_finished or self._failure):
                # the connection that cannot carry it takes the request along, and an error from
                # here would stand in the place of a cancellation
                with suppress(EngineError):
                    await self._post("abort", name)

    async def abort(self, request_id: str) -> None:
        await self._call("abort", request_id)

    async def abort_all(self) -> int:
        """Abort the requests of all clients, not only of this one."""
        num_aborted: int = await self._call("abort_all")
        return num_aborted

    async def pause(self) -> None:
        await self._call("pause")

    async def resume(self) -> None:
        await self._call("resume")

    async def load_weights(
        self, version: int, weights: WeightUpdate, *, swap: WeightSwap
    ) -> NoReturn:
        raise EngineError(
            f"engine at {self.url}: weights do not travel over this connection; "
            "the process that owns the engine loads them"
        )

    async def prefill(self, session_id: str, ids: Sequence[int]) -> None:
        await self._call("prefill", session_id, ids)

    async def release(self, session_id: str) -> None:
        """Not waited for: what is sent after it is done after it. Left out while the connection is
        made again, as whoever moves away has a place elsewhere: an engine that needs the room takes
        it from contexts that rest."""
        if self._is_up.is_set():
            await self._post("release", session_id)

    async def stats(self) -> EngineStats:
        return EngineStats(**await self._call("stats"))

    async def close(self) -> None:
        """End the connection, and with it the requests it carries; the engine goes on."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._socket.close()
        await self._session.close()
        if not self._reading.cancelled():
            self._reading.result()

    # ------------------------------------------------------------------ the connection

    async def _call(self, op: str, *arguments: object) -> Any:
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._send({"op": op, "number": number, "arguments": arguments})
                return await answer
        except TimeoutError as error:
            raise EngineError(
                f"engine at {self.url}: no answer to {op} in {CALL_TIMEOUT_S:.0f} s"
            ) from error
        finally:
            del self._calls[number]

    async def _post(self, op: str, *arguments: object) -> None:
        """A call whose answer nobody waits for."""
        await self._send({"op": op, "number": next(self._numbers), "arguments": arguments})

    async def _send(self, message: dict[str, Any]) -> None:
        await self._is_up.wait()
        if self._failure is not None:
            raise self._failure
        try:
            await self._socket.send_bytes(orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY))
        except ConnectionError as error:
            raise EngineError(f"engine at {self.url}: the connection is closed") from error

    async def _keep(self) -> None:
        """Read, and connect again where the connection broke although the engine is there."""
        failure = EngineError(f"engine at {self.url}: this side has closed the connection")
        loop, steady_from_s = asyncio.get_running_loop(), -inf
        try:
            while True:
                await self._read()
                lost = EngineError(
                    f"engine at {self.url}: the connection is closed "
                    f"(code {self._socket.close_code}, {self._socket.exception()!r})"
                )
                is_leaving = self._socket.close_code == WSCloseCode.GOING_AWAY
                if is_leaving or loop.time() < steady_from_s:
                    failure = lost
                    return
                self._is_up.clear()
                self._break_off(lost)
                log.warning("lost the connection to an engine", engine=self.url, error=str(lost))
                try:
                    self._socket = await _dial(self._session, self.url, RECONNECT_TIMEOUT_S)
                except EngineError as error:
                    failure = error
                    return
                steady_from_s = loop.time() + STEADY_S
                self._is_up.set()
        finally:
            # whatever ended this: nobody may wait for what does not come
            self._failure = failure
            self._break_off(failure)
            self._is_up.set()

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                break
            self._receive(orjson.loads(message.data))

    def _break_off(self, failure: EngineError) -> None:
        """Nothing more will come of what was asked: the server has dropped it."""
        for stream in self._streams.values():
            if not stream.is_finished:
                stream.fail(failure)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(failure)

    def _receive(self, message: dict[str, Any]) -> None:
        for name, ids, logprobs, policy_versions, reason, error in message["chunks"]:
            # Its reader may have gone away while this was on its way.
            if stream := self._streams.get(name):
                finish_reason = None if reason is None else FinishReason(reason)
                stream.push(ids, logprobs, policy_versions, finish_reason)
                if error is not None:
                    stream.fail(_unpacked(error))
        for number, value, error in message["answers"]:
            answer = self._calls.get(number)
            if answer is None or answer.done():
                continue
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(_unpacked(error))


async def _dial(
    session: aiohttp.ClientSession, url: str, timeout_s: float
) -> aiohttp.ClientWebSocketResponse:
    try:
        async with asyncio.timeout(timeout_s):
            return await session.ws_connect(
                url + ENDPOINT, heartbeat=HEARTBEAT_S, max_msg_size=MAX_MESSAGE_BYTES
            )
    except (aiohttp.ClientError, OSError) as error:
        raise EngineError(f"engine at {url}: no connection: {error!r}") from error


def _unpacked(error: tuple[str, str]) -> Exception:
    kind, text = error
    return RequestError(text) if kind == "request" else EngineError(text)
