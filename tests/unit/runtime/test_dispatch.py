"""Places and requeues as one runner carries them out: what is applied, rejected and aborted."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from agentrl.engine.engine import EngineError, GenerateRequest, TokenChunk
from agentrl.rollout.dispatch import Placed, TurnRequest
from agentrl.runtime.dispatch import CoordinatedDispatcher, Serving
from agentrl.types import Json, ToolCall, ToolResult
from scheduler.decisions import Place, Requeue, RequeueReason
from scheduler.events import Event, PlaceRejected, Progress, ToolReturned
from scheduler.replay import LogEntry


@dataclass
class FakeEngine:
    is_connected: bool = True
    aborted: list[str] = field(default_factory=list)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        raise AssertionError("nobody samples here")
        yield

    async def release(self, session_id: str) -> None: ...
    async def prefill(self, session_id: str, ids: Sequence[int]) -> None: ...

    async def abort(self, request_id: str) -> None:
        if not self.is_connected:
            raise EngineError("gone")
        self.aborted.append(request_id)


class Bench:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.dispatcher = CoordinatedDispatcher(self.events.append, self.reach)
        self.engine = FakeEngine()

    def reach(self, worker_id: str, generation: int) -> Serving | None:
        is_there = (worker_id, generation) == ("w0", 3)
        return Serving("default", self.engine) if is_there else None

    async def ask(self, *, replacements: int = 0) -> asyncio.Task[Placed]:
        request = TurnRequest(
            trajectory_id="t",
            session_id="t",
            request_id=f"t/{replacements}",
            turn=0,
            context_tokens=5,
            context=lambda: [1] * 5,
            replacements=replacements,
        )
        asking = asyncio.create_task(self.dispatcher.turn_ready(request))
        await asyncio.sleep(0)
        return asking

    def place(self, *, generation: int = 0, worker_generation: int = 3) -> None:
        self.dispatcher.on_decision(
            Place(
                t=0.0,
                job="main",
                trajectory_id="t",
                generation=generation,
                turn=0,
                worker_id="w0",
                worker_generation=worker_generation,
            )
        )

    async def requeue(self, *, generation: int = 0) -> None:
        self.dispatcher.on_decision(
            Requeue(
                t=0.0,
                job="main",
                trajectory_id="t",
                generation=generation,
                turn=0,
                reason=RequeueReason.SHIFT,
            )
        )
        await asyncio.sleep(0)

    @property
    def rejected(self) -> list[Event]:
        return [event for event in self.events if isinstance(event, PlaceRejected)]


async def test_a_place_reaches_the_turn_that_waits_for_it() -> None:
    bench = Bench()
    asking = await bench.ask()
    bench.place()
    assert (await asking).worker_id == "w0"
    assert not bench.rejected


async def test_a_place_on_a_worker_that_is_not_reached_is_rejected() -> None:
    bench = Bench()
    asking = await bench.ask()
    bench.place(worker_generation=4)
    assert len(bench.rejected) == 1
    assert not asking.done()
    asking.cancel()


async def test_a_requeued_turn_is_ended_at_its_engine_once() -> None:
    bench = Bench()
    asking = await bench.ask()
    bench.place()
    await asking
    await bench.requeue()
    assert bench.engine.aborted == ["t/0"]


async def test_a_requeue_that_comes_late_ends_nothing() -> None:
    """The turn asked again by itself, and runs under a newer generation."""
    bench = Bench()
    asking = await bench.ask(replacements=1)
    bench.place(generation=1)
    await asking
    await bench.requeue(generation=0)
    assert bench.engine.aborted == []
    bench.dispatcher.turn_finished("t", 0, num_tokens=1, context_tokens=6)
    await bench.requeue(generation=1)
    assert bench.engine.aborted == []


async def test_an_engine_that_is_gone_cannot_abort_and_nobody_minds() -> None:
    bench = Bench()
    asking = await bench.ask()
    bench.place()
    await asking
    bench.engine.is_connected = False
    await bench.requeue()
    assert bench.engine.aborted == []


def nested(levels: int) -> Json:
    value: Json = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("said", [2**70, "\ud800", float("nan"), nested(900)], ids=ascii)
async def test_whatever_a_policy_says_reaches_the_log(said: Json) -> None:
    """What JSON can hold and what Python's reader takes are not the same."""
    bench = Bench()
    call = ToolCall("no\ud800such", {"x": said, "\udfff": 1}, "0")
    result = ToolResult(call_id="0", name=call.name, text="no such tool", status="error")
    for attempt in "ab":
        bench.dispatcher.asked(attempt, "g", 1)
        bench.dispatcher.tool_started(attempt, 0, call)
        bench.dispatcher.tool_returned(attempt, 0, call, result)
    told = pickle.loads(pickle.dumps(bench.events))
    lines = [LogEntry(event=event, decisions=()).to_line() for event in told]
    assert [LogEntry.from_line(line).event for line in lines] == bench.events
    hashes = {event.call_hash for event in bench.events if isinstance(event, ToolReturned)}
    assert len(hashes) == 1, "the same call has the same hash"


async def test_a_long_turn_is_told_of_however_its_tokens_come_in_chunks() -> None:
    bench = Bench()
    bench.dispatcher.asked("t", "g", 1)
    for num_tokens in (7, 63, 65, 70, 127, 300, 301):
        bench.dispatcher.progress("t", 0, num_tokens)
    bench.dispatcher.turn_finished("t", 0, num_tokens=301, context_tokens=302)
    for num_tokens in (60, 90):
        bench.dispatcher.progress("t", 1, num_tokens)
    told = [(e.turn, e.tokens) for e in bench.events if isinstance(e, Progress)]
    assert told == [(0, 65), (0, 300), (1, 90)]
