"""The continuous batch written the slow way: one decode step at a time, nothing closed-form.

It is the reference that `scheduler.sim.worker` is held equal to, in times, tokens, preemptions
and evictions. Nothing else uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from scheduler.costs import Shape
from scheduler.sim.requests import Key, Request, WorkerStats


@dataclass(slots=True)
class _Sequence:
    request: Request
    done: int = 0
    is_aborted: bool = False

    @property
    def context(self) -> int:
        return self.request.context_tokens + self.done


class StepwiseWorker:
    """Same behaviour as `SkippingWorker`, one event a step."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.stats = WorkerStats()
        self._waiting: list[Request] = []
        self._running: list[_Sequence] = []
        """In order of joining."""
        self._resting: list[tuple[Key, int]] = []
        """Least recently used first."""
        self._action: str | None = None
        self._end_t = inf

    def next_t(self) -> float:
        return self._end_t

    def add(self, t: float, request: Request) -> None:
        self._waiting.append(request)

    def forget(self, key: Key) -> None:
        self._resting = [item for item in self._resting if item[0] != key]
        self._waiting = [
            request for request in self._waiting if request.key != key or request.new_tokens
        ]

    def abort(self, t: float, key: Key) -> int:
        self._waiting = [request for request in self._waiting if request.key != key]
        for sequence in self._running:
            if sequence.request.key == key:
                sequence.is_aborted = True
                is_at_end = self._action == "decode" and abs(t - self._end_t) < 1e-9
                return sequence.done + is_at_end
        return 0

    def advance(self, t: float) -> list[Key]:
        action, self._action, self._end_t = self._action, None, inf
        if action == "prefill":
            return []
        completed = []
        for sequence in list(self._running):
            sequence.done += 1
            self.stats.decoded_tokens += 1
            if sequence.done == sequence.request.new_tokens and not sequence.is_aborted:
                self._running.remove(sequence)
                self._resting.append((sequence.request.key, sequence.context))
                completed.append(sequence.request.key)
        return completed

    def plan(self, t: float) -> None:
        if self._action is not None:
            return
        self._running = [sequence for sequence in self._running if not sequence.is_aborted]
        prefill_s = self._join_waiting()
        if prefill_s > 0:
            self._action, self._end_t = "prefill", t + prefill_s
            self.stats.prefill_seconds += prefill_s
        elif self._running:
            while len(self._running) > 1 and self._overflow() > 0:
                self._preempt_last()
            self._evict()
            seconds = self.shape.decode.step_seconds(len(self._running), self._running_tokens())
            self._action, self._end_t = "decode", t + seconds
            self.stats.decode_seconds += seconds

    def _join_waiting(self) -> float:
        seconds = 0.0
        while self._waiting:
            request = self._waiting[0]
            tokens = self._running_tokens() + request.context_tokens
            if self._running and tokens + len(self._running) + 1 > self.shape.kv_tokens:
                break
            self._waiting.pop(0)
            cached = dict(self._resting).get(request.key, 0)
            self._resting = [item for item in self._resting if item[0] != request.key]
            if request.new_tokens:
                self._running.append(_Sequence(request))
            else:
                self._resting.append((request.key, request.context_tokens))
            self._evict()
            missing = request.context_tokens - min(cached, request.context_tokens)
            self.stats.prefilled_tokens += missing
            seconds += self.shape.prefill.seconds(missing, request.context_tokens - missing)
        return seconds

    def _running_tokens(self) -> int:
        return sum(sequence.context for sequence in self._running)

    def _overflow(self) -> int:
        return self._running_tokens() + len(self._running) - self.shape.kv_tokens

    def _evict(self) -> None:
        while self._resting and self._overflow() + sum(tokens for _, tokens in self._resting) > 0:
            self._resting.pop(0)
            self.stats.evictions += 1

    def _preempt_last(self) -> None:
        sequence = self._running.pop()
        request = sequence.request
        self._waiting.insert(
            0, Request(request.key, sequence.context, request.new_tokens - sequence.done)
        )
        self.stats.preemptions += 1
