"""A context computed ahead of a move: what is carried out, what is late, and what it saves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tiny_models import prompts, tiny_qwen

from agentrl.engine.engine import EngineError, GenerateRequest, Sampling, TokenChunk
from agentrl.engine.remote import EngineServer
from agentrl.engine.remote_client import RemoteEngine
from agentrl.engine.torch_engine import TorchEngine
from agentrl.rollout.dispatch import Placed, TurnRequest
from agentrl.runtime.coordinator import Coordinator
from agentrl.runtime.coordinator_state import CoordinatorState
from agentrl.runtime.dispatch import CoordinatedDispatcher, Serving, WorkerEngine
from agentrl.types import Outcome
from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.decisions import Place, Prewarm
from scheduler.events import (
    Event,
    Role,
    RunStarted,
    Submitted,
    ToolStarted,
    TurnFinished,
    TurnReady,
    WorkerReady,
)
from scheduler.routing.least_load import LeastLoad
from scheduler.views import TrajectoryView, WorkerView

pytestmark = pytest.mark.timeout(60)
CONTEXT = [1, 2, 3]


@dataclass
class FakeEngine:
    heard: list[tuple[str, list[int]]] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    is_lost: bool = False

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        raise AssertionError("nobody samples here")
        yield

    async def abort(self, request_id: str) -> None: ...

    async def prefill(self, session_id: str, ids: Sequence[int]) -> None:
        if self.is_lost:
            raise EngineError("gone")
        self.heard.append(("prefill", list(ids)))
        self.sessions.append(session_id)

    async def release(self, session_id: str) -> None:
        self.heard.append(("release", []))
        self.sessions.append(session_id)


class Bench:
    """A trajectory whose first turn has ended on worker `home`, beside a worker `away`."""

    def __init__(self, home: WorkerEngine, away: WorkerEngine) -> None:
        self.events: list[Event] = []
        workers = {("home", 1): Serving("default", home), ("away", 2): Serving("default", away)}
        self.dispatcher = CoordinatedDispatcher(
            self.events.append, lambda *worker: workers.get(worker)
        )
        self.context = list(CONTEXT)
        self.session_id = "t"

    async def turn(self, number: int, worker_id: str) -> Placed:
        request = TurnRequest(
            trajectory_id="t",
            session_id=self.session_id,
            request_id=f"t/{number}",
            turn=number,
            context_tokens=len(self.context),
            context=lambda: list(self.context),
            replacements=0,
        )
        asking = asyncio.create_task(self.dispatcher.turn_ready(request))
        await asyncio.sleep(0)
        self.dispatcher.on_decision(
            Place(
                t=0.0,
                job="main",
                trajectory_id="t",
                generation=0,
                turn=number,
                worker_id=worker_id,
                worker_generation=1 if worker_id == "home" else 2,
            )
        )
        return await asking

    def finish_turn(self, number: int) -> None:
        self.dispatcher.turn_finished("t", number, num_tokens=1, context_tokens=len(self.context))

    async def prewarm(self, *, generation: int = 0, worker_generation: int = 2) -> None:
        self.dispatcher.on_decision(
            Prewarm(
                t=0.0,
                job="main",
                trajectory_id="t",
                generation=generation,
                worker_id="away",
                worker_generation=worker_generation,
            )
        )
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def away() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def bench(away: FakeEngine) -> Bench:
    return Bench(FakeEngine(), away)


async def test_the_context_of_a_resting_trajectory_is_computed_with_what_was_sampled(
    bench: Bench, away: FakeEngine
) -> None:
    await bench.turn(0, "home")
    bench.context += [7, 8]
    bench.finish_turn(0)
    await bench.prewarm()
    assert away.heard == [("prefill", [1, 2, 3, 7, 8])]
    await bench.turn(1, "away")
    await settled()
    assert len(away.heard) == 1


async def test_an_order_that_comes_while_the_turn_runs_or_waits_is_late(
    bench: Bench, away: FakeEngine
) -> None:
    await bench.turn(0, "home")
    await bench.prewarm()
    assert away.heard == []


async def test_orders_for_another_generation_are_late(bench: Bench, away: FakeEngine) -> None:
    await bench.turn(0, "home")
    bench.finish_turn(0)
    await bench.prewarm(generation=1)
    await bench.prewarm(worker_generation=1)
    assert away.heard == []


async def test_what_the_next_turn_does_not_use_is_let_go_of(bench: Bench, away: FakeEngine) -> None:
    await bench.turn(0, "home")
    bench.finish_turn(0)
    await bench.prewarm()
    await bench.turn(1, "home")
    await settled()
    assert [name for name, _ in away.heard] == ["prefill", "release"]


async def test_an_attempt_that_went_on_elsewhere_is_held_under_its_own_session(
    bench: Bench, away: FakeEngine
) -> None:
    bench.session_id = "t~1"
    await bench.turn(0, "home")
    bench.finish_turn(0)
    await bench.prewarm()
    await bench.turn(1, "home")
    await settled()
    assert away.sessions == ["t~1", "t~1"]


async def test_what_an_attempt_leaves_at_its_end_is_let_go_of(
    bench: Bench, away: FakeEngine
) -> None:
    await bench.turn(0, "home")
    bench.finish_turn(0)
    await bench.prewarm()
    bench.dispatcher.finished("t", Outcome.CANCELLED, 1)
    await bench.prewarm()
    assert [name for name, _ in away.heard] == ["prefill", "release"]


async def test_an_engine_that_is_lost_meanwhile_costs_nothing_else(
    bench: Bench, away: FakeEngine
) -> None:
    await bench.turn(0, "home")
    bench.finish_turn(0)
    away.is_lost = True
    await bench.prewarm()
    assert (await bench.turn(1, "home")).worker_id == "home"


async def test_the_target_computes_nothing_but_what_the_tool_said() -> None:
    """Two real engines behind their servers."""
    engines = [TorchEngine(tiny_qwen(), num_slots=2, context_tokens=128) for _ in range(2)]
    servers = [EngineServer(engine, host="127.0.0.1", token="secret") for engine in engines]
    urls = [f"ws://127.0.0.1:{await server.start()}" for server in servers]
    home, away = [await RemoteEngine.connect(url, "secret") for url in urls]
    bench = Bench(home, away)
    (bench.context,) = prompts(40)
    placed = await bench.turn(0, "home")
    bench.context += await sampled(placed, bench.context, number=0)
    bench.finish_turn(0)
    await bench.prewarm()
    await away.prefill("t", bench.context)  # returns when that, or an earlier one, is there
    before = (await away.stats()).tokens_prefilled
    said_by_the_tool = [11, 12, 13]
    bench.context += said_by_the_tool
    placed = await bench.turn(1, "away")
    answer = await sampled(placed, bench.context, number=1)
    computed = (await away.stats()).tokens_prefilled - before
    assert computed == len(said_by_the_tool)
    assert answer == await sampled(Placed("home", "default", home), bench.context, number=2)
    for part in (home, away, *servers, *engines):
        await part.close()


async def sampled(placed: Placed, ids: Sequence[int], *, number: int) -> list[int]:
    request = GenerateRequest(
        request_id=f"t/{number}",
        session_id="t",
        ids=list(ids),
        max_new_tokens=6,
        sampling=Sampling(temperature=0),
    )
    return [token async for chunk in placed.engine.generate(request) for token in chunk.ids]


class Elsewhere:
    """Every tool call is time to get ready to move."""

    def prewarm(
        self, trajectory: TrajectoryView, workers: Sequence[WorkerView]
    ) -> WorkerView | None:
        return next(w for w in workers if w.worker_id != trajectory.home_id)


async def test_the_coordinator_sends_it_to_whoever_holds_the_attempt(tmp_path: Path) -> None:
    scheduler = Scheduler(
        routing=LeastLoad(),
        prewarming=Elsewhere(),
        admission=CapacityAdmission(
            groups_per_step=1, num_steps=1, max_staleness=0, max_running_groups=1
        ),
    )
    state = CoordinatorState(scheduler=scheduler, log_bytes=0)
    coordinator = Coordinator(state, tmp_path / "events.jsonl", lambda: 0.0, 1.0)
    await coordinator.open()
    workers = [
        WorkerReady(
            worker_id=name, generation=0, role=Role.ROLLOUT, bucket="default", tp=1, max_running=2
        )
        for name in ("one", "two")
    ]
    await coordinator.tell("driver", 1, [RunStarted(version=0, accepted_groups=0), *workers], 0)
    attempt: list[Event] = [
        Submitted(trajectory_id="t", group_id="g", prompt_tokens=3),
        TurnReady(trajectory_id="t", generation=0, turn=0, context_tokens=3),
        TurnFinished(trajectory_id="t", generation=0, turn=0, tokens=1, context_tokens=4),
        ToolStarted(trajectory_id="t", generation=0, turn=0, call_id="0", tool="find"),
    ]
    decisions = (await coordinator.tell("runner-0", 1, attempt, 0)).decisions
    (place,) = [d for d in decisions if isinstance(d, Place)]
    (prewarm,) = [d for d in decisions if isinstance(d, Prewarm)]
    await coordinator.close()
    assert {place.worker_id, prewarm.worker_id} == {"one", "two"}
