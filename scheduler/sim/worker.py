"""A continuous batch that skips from change to change instead of from token to token.

Between two changes of the batch the time of `k` steps is closed-form (scheduler.costs), so a
segment of thousands of steps is one event. What can change the batch: a turn completes, memory
runs full, something arrives or is aborted; the last two cut the segment at the end of the step in
progress. `scheduler.sim.stepwise` is the same worker written token by token; tests hold the two
equal.

Order at a boundary: aborted turns leave, then waiting turns join first come first served while
memory allows (an empty batch takes any turn), then their missing tokens are prefilled in one
action, or, with nothing to prefill, decode steps follow. Before steps, memory must hold one more
token a sequence: resting contexts are evicted, least recently used first, then the turns that
joined last are preempted: they lose their cache and wait at the front.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import inf

from scheduler.costs import Shape
from scheduler.sim.memory import RestingCaches
from scheduler.sim.requests import Key, Request, WorkerStats


@dataclass(slots=True)
class _Running:
    request: Request
    joined: int
    """Sequence number of joining; the largest is preempted first."""
    first_step: int
    """The worker's step count when it joined."""
    last_step: int
    """The step count at which it is complete."""
    is_aborted: bool = False

    def context_at(self, step: int) -> int:
        return self.request.context_tokens + step - self.first_step


@dataclass(slots=True)
class _Segment:
    """Decode steps of an unchanging batch; a cut lowers `steps`."""

    start_t: float
    num_running: int
    kv_tokens: int
    steps: int


class SkippingWorker:
    """See the module docstring."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.stats = WorkerStats()
        self._waiting: list[Request] = []
        self._running: dict[Key, _Running] = {}
        self._completions: list[tuple[int, int, Key]] = []
        self._resting = RestingCaches()
        self._kv_tokens = 0
        """Of running turns."""
        self._steps = 0
        self._joins = 0
        self._end_t = inf
        self._segment: _Segment | None = None
        self._is_prefilling = False
        self._has_aborted = False

    def next_t(self) -> float:
        return self._end_t

    def add(self, t: float, request: Request) -> None:
        self._waiting.append(request)
        self._cut(t)

    def forget(self, key: Key) -> None:
        self._resting.wake(key)
        self._waiting = [
            request for request in self._waiting if request.key != key or request.new_tokens
        ]

    def abort(self, t: float, key: Key) -> int:
        running = self._running.get(key)
        if running is None:
            self._waiting = [request for request in self._waiting if request.key != key]
            self._cut(t)
            return 0
        running.is_aborted = self._has_aborted = True
        done = self._steps + self._finished_steps(t) - running.first_step
        self._cut(t)
        return done

    def advance(self, t: float) -> list[Key]:
        assert t == self._end_t
        self._end_t = inf
        if self._is_prefilling:
            self._is_prefilling = False
            return []
        segment = self._segment
        assert segment is not None
        self._segment = None
        self._steps += segment.steps
        self._kv_tokens += segment.num_running * segment.steps
        self.stats.decode_seconds += t - segment.start_t
        self.stats.decoded_tokens += segment.num_running * segment.steps
        return self._complete()

    def plan(self, t: float) -> None:
        if self._is_prefilling or self._segment is not None:
            return
        self._drop_aborted()
        prefill_s = self._join_waiting()
        if prefill_s > 0:
            self._is_prefilling = True
            self._end_t = t + prefill_s
            self.stats.prefill_seconds += prefill_s
        elif self._running:
            self._begin_segment(t)

    # -------------------------------------------------------------------------------- the batch

    def _complete(self) -> list[Key]:
        completed = []
        while self._completions and self._completions[0][0] <= self._steps:
            last_step, joined, key = heapq.heappop(self._completions)
            running = self._running.get(key)
            if running is None or running.joined != joined or running.is_aborted:
                continue
            assert last_step == self._steps
            context = self._leave(key)
            self._resting.rest(key, context)
            completed.append(key)
        return completed

    def _leave(self, key: Key) -> int:
        context = self._running.pop(key).context_at(self._steps)
        self._kv_tokens -= context
        return context

    def _drop_aborted(self) -> None:
        if self._has_aborted:
            for key in [key for key, running in self._running.items() if running.is_aborted]:
                self._leave(key)
            self._has_aborted = False

    def _join_waiting(self) -> float:
        """Take in what fits; the seconds its prefill takes."""
        seconds = 0.0
        joined = 0
        for request in self._waiting:
            needed = self._kv_tokens + request.context_tokens + len(self._running) + 1
            if self._running and needed > self.shape.kv_tokens:
                break
            seconds += self._join(request)
            joined += 1
        del self._waiting[:joined]
        return seconds

    def _join(self, request: Request) -> float:
        cached = min(self._resting.wake(request.key), request.context_tokens)
        new_tokens = request.context_tokens - cached
        self.stats.prefilled_tokens += new_tokens
        seconds = self.shape.prefill.seconds(new_tokens, cached)
        if request.new_tokens == 0:
            self._resting.rest(request.key, request.context_tokens)
            self._evict_resting()
            return seconds
        self._joins += 1
        last_step = self._steps + request.new_tokens
        self._running[request.key] = _Running(request, self._joins, self._steps, last_step)
        heapq.heappush(self._completions, (last_step, self._joins, request.key))
        self._kv_tokens += request.context_tokens
        self._evict_resting()
        return seconds

    # --------------------------------------------------------------------------------- segments

    def _begin_segment(self, t: float) -> None:
        self._make_room()
        num_running = len(self._running)
        while self._completions[0][2] not in self._running or self._is_void(self._completions[0]):
            heapq.heappop(self._completions)
        to_completion = self._completions[0][0] - self._steps
        room = self.shape.kv_tokens - self._kv_tokens - self._resting.total
        steps = max(1, min(to_completion, room // num_running))
        self._segment = _Segment(t, num_running, self._kv_tokens, steps)
        self._end_t = t + self.shape.decode.seconds(steps, num_running, self._kv_tokens)

    def _is_void(self, completion: tuple[int, int, Key]) -> bool:
        return self._running[completion[2]].joined != completion[1]

    def _make_room(self) -> None:
        while len(self._running) > 1 and self._overflows():
            self._preempt(max(self._running.values(), key=lambda running: running.joined))
        self._evict_resting()

    def _overflows(self) -> bool:
        return self._kv_tokens + len(self._running) > self.shape.kv_tokens

    def _evict_resting(self) -> None:
        room = self.shape.kv_tokens - self._kv_tokens - len(self._running)
        if self._resting.total > room:
            self.stats.evictions += self._resting.evict_to(max(0, room))

    def _preempt(self, running: _Running) -> None:
        done = self._steps - running.first_step
        request = running.request
        self._leave(request.key)
        self._waiting.insert(
            0, Request(request.key, request.context_tokens + done, request.new_tokens - done)
        )
        self.stats.preemptions += 1

    def _finished_steps(self, t: float) -> int:
        """Whole steps of the segment in progress that have ended by `t`."""
        segment = self._segment
        if segment is None:
            return 0
        reached = self._steps_to_reach(segment, t)
        end_t = self._segment_end(segment, reached)
        return reached if end_t <= t + 1e-12 * abs(t) else reached - 1

    def _cut(self, t: float) -> None:
        """Let the segment end with the step in progress at `t`."""
        segment = self._segment
        if segment is not None:
            steps = max(1, self._steps_to_reach(segment, t))
            if steps < segment.steps:
                segment.steps = steps
                self._end_t = self._segment_end(segment, steps)

    def _steps_to_reach(self, segment: _Segment, t: float) -> int:
        steps = self.shape.decode.steps_to_reach(
            t - segment.start_t, segment.num_running, segment.kv_tokens
        )
        return min(steps, segment.steps)

    def _segment_end(self, segment: _Segment, steps: int) -> float:
        cost = self.shape.decode
        return segment.start_t + cost.seconds(steps, segment.num_running, segment.kv_tokens)
