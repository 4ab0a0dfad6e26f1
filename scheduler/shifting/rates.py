"""What a number of workers is worth to a role, by the inter-token latency of its cost model.

The unit is one fully loaded worker. `k` sequences on `n` workers decode at `k / step(k / n)` tokens a
second; dividing by what one worker does at its best makes roles with different models comparable.
The curve is concave: a worker more means much while sequences wait, and nothing once each batch
is so small that reading the weights is all that a step takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.costs import Shape


@dataclass(frozen=True, slots=True)
class RoleRate:
    shape: Shape
    max_running: int
    context_tokens: float
    """Mean of the sequences at hand."""

    @property
    def most_running(self) -> float:
        """Sequences that fit onto one worker."""
        by_memory = self.shape.kv_tokens / max(1.0, self.context_tokens)
        return max(1.0, min(float(self.max_running), by_memory))

    def step_s(self, sequences: float) -> float:
        """Of one decode step of a worker with this many sequences."""
        running = max(1.0, min(sequences, self.most_running))
        cost = self.shape.decode
        return cost.d + cost.a * running * self.context_tokens + max(
            cost.b, cost.b0 + cost.c * running
        )  # fmt: skip

    @property
    def peak(self) -> float:
        """Tokens a second of one worker at its best."""
        return self.most_running / self.step_s(self.most_running)

    def tokens_per_s(self, sequences: float, num_workers: int) -> float:
        if num_workers == 0 or sequences <= 0:
            return 0.0
        running = min(sequences / num_workers, self.most_running)
        busy = num_workers if running >= 1.0 else sequences
        return busy * max(running, 1.0) / self.step_s(max(running, 1.0))

    def worth(self, sequences: float, num_workers: int) -> float:
        """In fully loaded workers."""
        return self.tokens_per_s(sequences, num_workers) / self.peak
