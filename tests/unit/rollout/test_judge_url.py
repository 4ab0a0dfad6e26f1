"""A judge behind a URL: the real protocol over real sockets, and everything a server can do wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from agentrl.config.judge import UrlJudge
from agentrl.judging import JudgeLost
from agentrl.rollout import judge_url
from agentrl.rollout.judge import Answer, Ask
from agentrl.rollout.judge_text import messages_for, score_question
from agentrl.rollout.judge_url import UrlJudgeModel

KEY = "sk-never-to-be-seen-anywhere"
QUESTION = score_question("how good?", "x", 10)
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


def completion(text: str | None, **message: Any) -> dict[str, Any]:
    """What chat completions look like on the wire."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, **message},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13},
    }


class Server:
    """Answers `score: fine => 7`, after playing its faults, one a request."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self._faults = list(faults)
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.running = self.most_running = 0
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start(self) -> str:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            self.bodies.append(await request.json())
            self.keys.append(request.headers.get("Authorization"))
            await asyncio.sleep(0)
            if self._faults:
                return await self._faults.pop(0)(request)
            return web.json_response(completion("score: fine => 7"))
        finally:
            self.running -= 1


def status(code: int, body: str = "busy", **headers: str) -> Fault:
    async def fault(request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=body, headers=headers)

    return fault


def says(body: Any) -> Fault:
    async def fault(request: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str) else None
        return web.Response(text=text) if text is not None else web.json_response(body)

    return fault


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(5)
    return web.Response()


async def hangs_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def stops_halfway(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


async def echoes_the_key(request: web.Request) -> web.StreamResponse:
    return web.Response(status=401, text=f"wrong: {request.headers['Authorization']}")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.setattr(judge_url, "MAX_PAUSE_S", 0.01)
    monkeypatch.setattr(judge_url, "_growing", lambda state: 0.001)


@asynccontextmanager
async def judging(server: Server, **changes: Any) -> AsyncIterator[UrlJudgeModel]:
    url = await server.start()
    given: dict[str, Any] = {
        "type": "server",
        "url": url,
        "model": "m",
        "api_key_env": "JUDGE_KEY",
        "retries": 3,
        "request_timeout_s": 0.5,
    }
    try:
        async with UrlJudgeModel(UrlJudge(**{**given, **changes})) as model:
            yield model
    finally:
        await server.close()


def ask(number: int = 0, seed: int = 1 << 62) -> Ask:
    return Ask(
        ask_id=f"g-0/judge-{number}",
        group_id="g",
        question=QUESTION,
        messages=messages_for(QUESTION, brief=False),
        seed=seed,
    )


async def test_a_question_travels_as_a_chat_completion() -> None:
    server = Server()
    async with judging(server, max_tokens=33, temperature=0.25) as model:
        answer = await model.answer(ask())
    assert (answer.text, answer.num_tokens) == ("score: fine => 7", 4)
    assert answer.served_by.startswith("http://127.0.0.1")
    (body,) = server.bodies
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 33, 0.25)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert 0 <= body["seed"] < 1 << 31
    assert server.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    "fault",
    [
        status(429),
        status(429, **{"Retry-After": "0.01"}),
        status(429, **{"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
        status(500),
        status(503),
        hangs,
        hangs_up,
        stops_halfway,
        says("<html>a proxy</html>"),
        says("[]"),
        says({"error": "odd"}),
        says({"choices": []}),
        says(completion(None) | {"choices": [{"message": {"content": 3}}]}),
    ],
)
async def test_what_may_go_away_is_asked_again(fault: Fault) -> None:
    server = Server([fault, fault])
    async with judging(server) as model:
        answer = await model.answer(ask())
    assert answer.text == "score: fine => 7"
    assert len(server.bodies) == 3


@pytest.mark.parametrize("fault", [status(429), status(500), hangs_up, says("{"), hangs])
async def test_what_does_not_go_away_is_a_lost_judge(fault: Fault) -> None:
    server = Server([fault] * 9)
    async with judging(server, retries=2, request_timeout_s=0.1) as model:
        with pytest.raises(JudgeLost, match="3 times"):
            await model.answer(ask())
    assert len(server.bodies) == 3


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422])
async def test_what_asking_again_cannot_mend_fails_at_once(code: int) -> None:
    server = Server([status(code, "no such model")] * 9)
    async with judging(server) as model:
        with pytest.raises(JudgeLost, match=f"status {code}: no such model"):
            await model.answer(ask())
    assert len(server.bodies) == 1


async def test_nobody_at_the_address_is_a_lost_judge() -> None:
    server = Server()
    async with judging(server, retries=1) as model:
        await server.close()
        with pytest.raises(JudgeLost, match="no connection"):
            await model.answer(ask())


async def test_thoughts_are_kept_and_no_text_is_an_empty_answer() -> None:
    server = Server([says(completion(None, reasoning_content="hm"))])
    async with judging(server) as model:
        answer = await model.answer(ask())
    assert (answer.text, answer.reasoning) == ("", "hm")


async def test_requests_under_way_are_bounded() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return web.json_response(completion("score: => 1"))

    server = Server([slow] * 12)
    answers: list[Answer] = []
    async with judging(server, max_running=3) as model, asyncio.TaskGroup() as group:

        async def one(number: int) -> None:
            answers.append(await model.answer(ask(number)))

        for number in range(12):
            group.create_task(one(number))
    assert len(answers) == 12
    assert server.most_running == 3


async def test_the_key_is_in_no_error_and_no_log() -> None:
    server = Server([status(500, f"key {KEY}"), says(f"junk {KEY}"), echoes_the_key])
    with capture_logs() as logs:
        async with judging(server) as model:
            with pytest.raises(JudgeLost) as caught:
                await model.answer(ask())
    assert "401" in str(caught.value)
    assert KEY not in str(caught.value)
    assert len(logs) == 2
    assert KEY not in str(logs)


async def test_a_server_that_repeats_the_key_does_not_get_it_into_the_record() -> None:
    server = Server([says(completion(f"score: {KEY} => 1", reasoning_content=KEY))])
    async with judging(server) as model:
        answer = await model.answer(ask())
    assert KEY not in answer.text + answer.reasoning


def test_a_key_that_is_not_set_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    section = UrlJudge(type="server", url="http://h/v1", model="m", api_key_env="JUDGE_KEY")
    with pytest.raises(ValueError, match="variable JUDGE_KEY is not set"):
        UrlJudgeModel(section)


async def test_no_key_is_sent_where_none_is_wanted() -> None:
    server = Server()
    async with judging(server, api_key_env=None) as model:
        await model.answer(ask())
    assert server.keys == [None]
