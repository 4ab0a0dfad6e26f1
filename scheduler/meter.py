"""How busy a worker was over a time: sums from which means between any two moments follow."""

from __future__ import annotations


class WorkerMeter:
    """Turns join with the context they have; what they sample meanwhile is not in it."""

    def __init__(self, t: float) -> None:
        self._t = t
        self._sequences = 0
        self._tokens = 0
        self.sequence_s = 0.0
        """Sequences, summed over time ..."""
        self.token_s = 0.0
        """... and tokens in memory, since it entered service."""

    def pass_to(self, t: float) -> None:
        self.sequence_s += self._sequences * (t - self._t)
        self.token_s += self._tokens * (t - self._t)
        self._t = t

    def join(self, t: float, context_tokens: int) -> None:
        self.pass_to(t)
        self._sequences += 1
        self._tokens += context_tokens

    def leave(self, t: float, context_tokens: int) -> None:
        self.pass_to(t)
        self._sequences -= 1
        self._tokens -= context_tokens
