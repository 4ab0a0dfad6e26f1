"""The tokens of one request on their way from an engine to whoever iterates over them.

A reader that falls behind gets several tokens in one chunk; none is lost, and what arrived before
an error is read before the error is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrl.engine.engine import FinishReason, TokenChunk


class TokenStream:
    def __init__(self) -> None:
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._policy_versions: list[int] = []
        self._finish_reason: FinishReason | None = None
        self._error: Exception | None = None
        self._has_news = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """Nothing more will arrive."""
        return self._finish_reason is not None or self._error is not None

    def push(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        policy_versions: Sequence[int],
        finish_reason: FinishReason | None,
    ) -> None:
        self._ids.extend(ids)
        self._logprobs.extend(logprobs)
        self._policy_versions.extend(policy_versions)
        self._finish_reason = finish_reason
        self._has_news.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._has_news.set()

    async def next_chunk(self) -> TokenChunk:
        """Wait for news, and return all there is; the last chunk has a finish reason."""
        await self._has_news.wait()
        self._has_news.clear()
        if self._error is not None:
            if not self._ids:
                raise self._error.with_traceback(None)
            self._has_news.set()
        chunk = TokenChunk(
            ids=self._ids,
            logprobs=self._logprobs,
            policy_versions=self._policy_versions,
            finish_reason=self._finish_reason,
        )
        self._ids, self._logprobs, self._policy_versions = [], [], []
        return chunk
