"""A judge behind a URL that speaks the protocol of OpenAI's chat completions.

Requests under way are bounded, each has a deadline, and what a busy server refuses is asked again
after the time it names, or after a growing and jittered pause. What asking again cannot mend (a
wrong key, an unknown model) fails at once.

Invariant: the key comes from the environment, and is in no error, log or record.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Self

import aiohttp
import orjson
import structlog
import tenacity

from agentrl.config.dump import MASK
from agentrl.config.judge import UrlJudge
from agentrl.judging import JudgeLost
from agentrl.rollout.judge import Answer, Ask

log = structlog.get_logger(__name__)

AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses that may go away by themselves."""
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
MAX_SEED = 1 << 31
"""Servers keep seeds in 32 bits, with a sign."""
SHOWN_BODY = 300


class _Again(Exception):
    """This request failed in a way that another one may not; `after_s` if the server said when."""

    def __init__(self, text: str, after_s: float | None = None) -> None:
        super().__init__(text)
        self.after_s = after_s


class UrlJudgeModel:
    """Implements `JudgeModel`. A context manager: it holds connections."""

    def __init__(self, section: UrlJudge) -> None:
        self._section = section
        self._key = _key_of(section)
        self._url = f"{section.url.rstrip('/')}/chat/completions"
        self._permits = asyncio.Semaphore(section.max_running)

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=self._section.request_timeout_s),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def answer(self, ask: Ask) -> Answer:
        body = {
            "model": self._section.model,
            "messages": [{"role": m.role, "content": m.content} for m in ask.messages],
            "max_tokens": self._section.max_tokens,
            "temperature": self._section.temperature,
            "seed": ask.seed % MAX_SEED,
        }
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(1 + self._section.retries),
            wait=_pause_s,
            retry=tenacity.retry_if_exception_type(_Again),
            before_sleep=_log_pause,
            reraise=True,
        )
        try:
            async with self._permits:
                answer: Answer = await retrying(self._request, body)
        except _Again as error:
            tries = 1 + self._section.retries
            raise JudgeLost(f"judge at {self._section.url}: {error}, {tries} times") from None
        return answer

    async def _request(self, body: dict[str, Any]) -> Answer:
        try:
            async with self._session.post(self._url, json=body) as response:
                if response.status != 200:
                    raise self._refusal(response, await response.text(errors="replace"))
                text = await response.text(errors="replace")
                return self._read(text)
        except TimeoutError as error:
            raise _Again(f"no answer in {self._section.request_timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Again(f"no connection: {self._masked(repr(error))}") from error

    def _refusal(self, response: aiohttp.ClientResponse, body: str) -> Exception:
        text = f"status {response.status}: {self._masked(body[:SHOWN_BODY])}"
        if response.status in AGAIN:
            return _Again(text, _seconds(response.headers.get("Retry-After")))
        return JudgeLost(f"judge at {self._section.url}: {text}")

    def _read(self, text: str) -> Answer:
        """A body that is not of the protocol is the server's fault: it is asked again."""
        try:
            reply = orjson.loads(text)
            message = reply["choices"][0]["message"]
            said = message["content"]
        except (ValueError, TypeError, LookupError) as error:
            raise _Again(f"no chat completion: {self._masked(text[:SHOWN_BODY])!r}") from error
        if not isinstance(said, str | None):
            raise _Again(f"no text in the message: {said!r:.{SHOWN_BODY}}")
        usage = reply.get("usage") or {}
        return Answer(
            text=self._masked(said or ""),
            reasoning=self._masked(str(message.get("reasoning_content") or "")),
            served_by=self._section.url,
            num_tokens=int(usage.get("completion_tokens") or 0),
        )

    def _masked(self, text: str) -> str:
        return text.replace(self._key, MASK) if self._key else text


def _key_of(section: UrlJudge) -> str:
    if section.api_key_env is None:
        return ""
    key = os.environ.get(section.api_key_env, "")
    if not key:
        raise ValueError(
            f"judge.api_key_env: the environment variable {section.api_key_env} is not set; "
            "export it with the key of the server at judge.url"
        )
    return key


def _pause_s(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _Again) and error.after_s is not None:
        return min(error.after_s, MAX_PAUSE_S)
    return _growing(state)


_growing = tenacity.wait_random_exponential(multiplier=FIRST_PAUSE_S, max=MAX_PAUSE_S)


def _seconds(header: str | None) -> float | None:
    """Of a Retry-After; its other form, a date, is left to our own pauses."""
    try:
        return max(0.0, float(header)) if header is not None else None
    except ValueError:
        return None


def _log_pause(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.info("a judge did not answer; asking again", error=str(error), tries=state.attempt_number)
