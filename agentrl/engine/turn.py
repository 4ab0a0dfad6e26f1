"""One turn as an engine serves it, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from agentrl.engine.engine import FinishReason, GenerateRequest


class Progress(NamedTuple):
    """What one turn sampled since it last reported."""

    request_id: str
    ids: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    finish_reason: FinishReason | None


@dataclass(slots=True, kw_only=True, eq=False)
class ServedTurn:
    """A request on its way through the batcher. With `max_new_tokens` 0 it only fills its slot."""

    request: GenerateRequest
    ids: list[int]
    """The context, and what was sampled after it."""
    stop_ids: frozenset[int]
    logprobs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)
    num_reported: int = 0
    """Of the sampled ids."""
    slot: int = -1
    """-1 while it waits for one."""
    filled: int = 0
    """How many leading ids have their keys and values in the slot."""
    names: list[int] | None = None
    """Of the blocks of a prompt that began with an empty slot; see `PrefixIndex`."""
    is_mixed: bool = False
    """Some of its keys and values are of weights that have been replaced."""
    waited_steps: int = 0
    stalled_since_s: float | None = None
    """A swap of weights holds it up."""
    is_released: bool = False
    """The session has ended: the slot goes free instead of resting."""

    @property
    def num_sampled(self) -> int:
        return len(self.logprobs)

    @property
    def remaining(self) -> int:
        return len(self.ids) - self.filled

    @property
    def is_prefill(self) -> bool:
        return self.request.max_new_tokens == 0

    @property
    def has_unreported(self) -> bool:
        return self.num_reported < self.num_sampled

    def report(self, finish_reason: FinishReason | None) -> Progress:
        since, self.num_reported = self.num_reported, self.num_sampled
        return Progress(
            self.request.request_id,
            self.ids[len(self.request.ids) + since :],
            self.logprobs[since:],
            self.policy_versions[since:],
            finish_reason,
        )
