"""What an inference engine is to the runtime: token ids in, token ids with log-probs out.

The protocol is asynchronous and streaming. Whatever was sampled before an abort, a pause or a
weight update is never lost: it has already been streamed. History is never text here, so nothing
is ever tokenized twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. `temperature=0` is greedy, with the log-probs of temperature 1."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    stop_ids: tuple[int, ...] = ()
    """Sampling one of these ends the turn; the id is part of the output."""
    seed: int = 0
    """The draw of token i depends on (seed, i) alone, never on what else is in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One turn: continue `ids` by at most `max_new_tokens`."""

    request_id: str
    """Unique per call."""
    session_id: str
    """The trajectory: an engine keeps its keys and values between turns under this name."""
    ids: Sequence[int]
    """The whole context so far, 1 <= len(ids), len(ids) + max_new_tokens <= context length."""
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)


class FinishReason(StrEnum):
    STOP = "stop"
    """A stop id was sampled."""
    LENGTH = "length"
    """`max_new_tokens` were sampled."""
    ABORTED = "aborted"
    """The engine let go of the request; what was streamed is valid and can be continued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """Some freshly sampled tokens of one request, in order. The last chunk has a finish reason."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    """Of the distribution really sampled from: after temperature and truncation."""
    policy_versions: Sequence[int]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of load, for placement and for the record."""

    policy_version: int
    running: int
    waiting: int
    num_slots: int
    cached_tokens: int
    """Tokens whose keys and values are held, of running and resting sessions."""
    tokens_generated: int
    """Since the engine was made."""
    tokens_prefilled: int


class WeightSwap(StrEnum):
    """What new weights mean for the turns that run when they come."""

    CONTINUE = "continue"
    """They go on, on the keys and values that the old weights computed."""
    REPREFILL = "reprefill"
    """They go on, and their keys and values are computed anew."""
    DRAIN = "drain"
    """They end first; turns that wait meanwhile begin with the new weights."""


WeightUpdate = Mapping[str, NDArray[np.float32]]
"""Parameter name to array, as `named_parameters()` of the model names them."""


class EngineError(Exception):
    """The engine cannot serve (lost, refused, broken). The trajectory is not to blame."""


class RequestError(ValueError):
    """The request itself is wrong (empty, an id outside the vocabulary, over the context)."""


class UnfitWeights(ValueError):
    """The weights are not the model's (names, shapes): no engine of the run can take them."""


@runtime_checkable
class Engine(Protocol):
    """Token in, token out. All methods may be called concurrently from one event loop."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Stream the continuation. Raises `RequestError` or `EngineError`.

        Closing the iterator early aborts the request.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a running request with `FinishReason.ABORTED`; unknown ids are no error."""
        ...

    async def abort_all(self) -> int:
        """Abort all running and waiting requests; returns how many."""
        ...

    async def pause(self) -> None:
        """Stop between two decode steps; running requests keep their state."""
        ...

    async def resume(self) -> None: ...

    async def load_weights(self, version: int, weights: WeightUpdate, *, swap: WeightSwap) -> None:
        """Swap weights between two decode steps. Tokens sampled from then on carry `version`.

        Raises `UnfitWeights`, and changes nothing; or `EngineError`, and serves no more.
        """
        ...

    async def prefill(self, session_id: str, ids: Sequence[int]) -> None:
        """Compute keys and values of a context ahead of its turn."""
        ...

    async def release(self, session_id: str) -> None:
        """The trajectory has ended or moved away: its keys and values may go."""
        ...

    async def stats(self) -> EngineStats: ...

    async def close(self) -> None: ...
