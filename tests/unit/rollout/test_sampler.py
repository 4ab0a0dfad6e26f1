"""Turns over places that end early: nothing sampled is lost, limits hold, draws are never repeated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from rollout_doubles import END, Bench, ChunkEngine, attempt_at, chunk

from agentrl import Env, Task, ToolCall, Turn, reward, tool
from agentrl.engine.engine import EngineError, FinishReason
from agentrl.rollout.local import ScriptedEngine
from agentrl.rollout.sampler import MAX_FRUITLESS_TRIES
from agentrl.types import Outcome, StopReason

TASK = Task("t", "hi")
PROMPT_IDS = 5  # <user> h i <end> <assistant>


class Echo(Env):
    max_turns = 10

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        yield TASK

    @tool
    async def echo(self, text: str) -> str:
        return text

    @reward
    async def always(self) -> float:
        return 1.0


STOP, LENGTH, ABORTED = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORTED


async def test_an_aborted_turn_goes_on_with_what_it_has() -> None:
    engine = ChunkEngine(
        [
            [chunk([1, 2], version=4), chunk([3], ABORTED, version=4)],
            [chunk([], ABORTED)],
            [chunk([4, END], STOP, version=5)],
        ]
    )
    bench = Bench(Echo, engine=engine, limits={"max_turn_tokens": 10})
    trajectory = await bench.runner.run(attempt_at(TASK))
    prompt, sampled = trajectory.rows[0]
    assert sampled.ids.tolist() == [1, 2, 3, 4, END]
    assert sampled.policy_versions is not None
    assert sampled.policy_versions.tolist() == [4, 4, 4, 5, 5]
    assert [list(r.ids) for r in engine.requests] == [
        prompt.ids.tolist(),
        [*prompt.ids, 1, 2, 3],
        [*prompt.ids, 1, 2, 3],
    ]
    assert [r.max_new_tokens for r in engine.requests] == [10, 7, 7]
    assert len({r.request_id for r in engine.requests}) == 3
    seeds = [r.sampling.seed for r in engine.requests]
    assert seeds[0] != seeds[1] == seeds[2]
    assert len(trajectory.placements) == 3
    assert engine.released == ["g-0"]


async def test_an_engine_that_breaks_costs_the_turn_nothing() -> None:
    engine = ChunkEngine([[chunk([1]), EngineError("gone")], [chunk([END], STOP)]])
    trajectory = await Bench(Echo, engine=engine).runner.run(attempt_at(TASK))
    assert trajectory.rows[0][1].ids.tolist() == [1, END]
    assert trajectory.outcome is Outcome.FINISHED


async def test_places_that_give_nothing_are_tried_a_few_times() -> None:
    engine = ChunkEngine([[EngineError("gone")]] * 100)
    trajectory = await Bench(Echo, engine=engine).runner.run(attempt_at(TASK))
    assert len(engine.requests) == MAX_FRUITLESS_TRIES
    assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRA_ERROR, None)
    assert "gone" in (trajectory.error or "")


async def test_no_request_asks_for_a_budget_of_zero() -> None:
    """Aborted exactly when the budget was spent: the turn is over, not asked for again."""
    engine = ChunkEngine([[chunk([1, 2, 3], ABORTED)]])
    bench = Bench(Echo, engine=engine, limits={"max_turn_tokens": 3})
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert len(engine.requests) == 1


CALL = Turn(
    "", (ToolCall("echo", {"text": "abc"}),)
)  # 10 ids, answered by <tool>abc<end><assistant>
CALL_IDS, RESULT_IDS = 10, 6


@pytest.mark.parametrize(
    ("limits", "stop", "sampled", "turns"),
    [
        # the turn's limit: one short cuts, exact does not
        ({"max_turn_tokens": CALL_IDS - 1}, StopReason.MAX_TOKENS, CALL_IDS - 1, 1),
        ({"max_turn_tokens": CALL_IDS}, StopReason.DONE, CALL_IDS + 1, 2),
        # of all turns: exactly spent ends it before the second, one more cuts or completes it
        ({"max_trajectory_tokens": CALL_IDS - 1}, StopReason.MAX_TOKENS, CALL_IDS - 1, 1),
        ({"max_trajectory_tokens": CALL_IDS}, StopReason.MAX_TOKENS, CALL_IDS, 1),
        ({"max_trajectory_tokens": CALL_IDS + 1}, StopReason.DONE, CALL_IDS + 1, 2),
        # of the context
        ({"context_tokens": PROMPT_IDS}, StopReason.CONTEXT_FULL, 0, 0),
        ({"context_tokens": PROMPT_IDS + 1}, StopReason.CONTEXT_FULL, 1, 1),
        ({"context_tokens": PROMPT_IDS + CALL_IDS}, StopReason.CONTEXT_FULL, CALL_IDS, 1),
        (
            {"context_tokens": PROMPT_IDS + CALL_IDS + RESULT_IDS},
            StopReason.CONTEXT_FULL,
            CALL_IDS,
            1,
        ),
        (
            {"context_tokens": PROMPT_IDS + CALL_IDS + RESULT_IDS + 1},
            StopReason.DONE,
            CALL_IDS + 1,
            2,
        ),
    ],
)
async def test_limits_at_their_edges(
    limits: dict[str, Any], stop: StopReason, sampled: int, turns: int
) -> None:
    bench = Bench(Echo, [CALL], limits=limits)
    trajectory = await bench.runner.run(attempt_at(TASK))
    assert (trajectory.stop_reason, trajectory.num_sampled_tokens, len(trajectory.turns)) == (
        stop,
        sampled,
        turns,
    )
    assert trajectory.reward == 1.0
    assert trajectory.outcome is (Outcome.TRUNCATED if stop.is_truncated else Outcome.FINISHED)
    heard = [kind for kind, *_ in bench.dispatcher.heard]
    assert heard.count("turn_finished") == turns
    assert trajectory.num_tokens <= limits.get("context_tokens", 10_000)


async def test_a_cut_turn_runs_none_of_its_calls() -> None:
    two = Turn("", (*CALL.calls, *CALL.calls))
    bench = Bench(Echo, [two], limits={"max_turn_tokens": 2 * CALL_IDS - 2})
    trajectory = await bench.runner.run(attempt_at(TASK))
    (turn,) = trajectory.turns
    assert turn.is_truncated
    assert [result.status for result in turn.results] == ["error", "error"]
    assert not [heard for heard in bench.dispatcher.heard if heard[0] == "tool_started"]


async def test_each_turn_continues_all_ids_before_it() -> None:
    class Asked(ScriptedEngine):
        def generate(self, request: Any) -> Any:
            asked.append(list(request.ids))
            return super().generate(request)

    asked: list[list[int]] = []
    chat = Bench(Echo).chat
    engine = Asked(chat)
    engine.follow("g-0", iter([CALL, CALL, CALL]))
    trajectory = await Bench(Echo, engine=engine).runner.run(attempt_at(TASK))
    everything = np.concatenate([s.ids for s in trajectory.rows[0]]).tolist()
    assert len(asked) == 4
    for ids in asked:
        assert everything[: len(ids)] == ids


async def seeds_of(**changes: Any) -> list[int]:
    engine = ChunkEngine([[chunk([END], STOP)]])
    await Bench(Echo, engine=engine).runner.run(attempt_at(TASK, **changes))
    return [request.sampling.seed for request in engine.requests]


async def test_seeds_depend_on_what_is_attempted_and_on_nothing_else() -> None:
    assert await seeds_of() == await seeds_of(trajectory_id="elsewhere", group_id="other")
    changes = [{}, {"sibling": 1}, {"attempt": 1}, {"split": "eval"}]
    assert len({seed for change in changes for seed in await seeds_of(**change)}) == 4
