"""A judge of the fleet: a question as an attempt of one turn, wherever its workers are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rollout_doubles import TOKENIZER, ChunkEngine, Recording, chunk

from agentrl.chat.plain import PlainFormat
from agentrl.engine.engine import EngineError, FinishReason, TokenChunk
from agentrl.judging import NoVerdict
from agentrl.rollout import judge_fleet
from agentrl.rollout.judge import Ask
from agentrl.rollout.judge_fleet import FleetJudge
from agentrl.rollout.judge_text import messages_for, score_question
from agentrl.rollout.sampler import MAX_FRUITLESS_TRIES
from agentrl.types import Outcome, Turn

CHAT = PlainFormat(TOKENIZER)
SAID = "score: fine => 7"
IDS = CHAT.render_assistant(Turn(SAID))
QUESTION = score_question("how good?", "x", 10)


class Hearing(Recording):
    """Also writes down which questions were placed."""

    def asked(self, ask_id: str, group_id: str, prompt_tokens: int) -> None:
        self.heard.append(("asked", ask_id, group_id, prompt_tokens))


def judge(engine: ChunkEngine, **changes: Any) -> tuple[FleetJudge, Hearing]:
    dispatcher = Hearing(engine)
    given = {"max_tokens": 64, "context_tokens": 256, "temperature": 0.5}
    return FleetJudge(dispatcher=dispatcher, chat=CHAT, **{**given, **changes}), dispatcher


def ask() -> Ask:
    return Ask(
        ask_id="g-0/judge-0",
        group_id="g",
        question=QUESTION,
        messages=messages_for(QUESTION, brief=True),
        seed=5,
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_fleet, "RETRY_S", 0.001)


async def test_a_question_lives_as_an_attempt_of_one_turn() -> None:
    engine = ChunkEngine([[chunk(IDS, FinishReason.STOP)]])
    model, dispatcher = judge(engine)
    answer = await model.answer(ask())
    assert (answer.text, answer.num_tokens, answer.served_by) == (SAID, len(IDS), "local")
    prompt = len(CHAT.render_start(messages_for(QUESTION, brief=True)))
    assert dispatcher.heard == [
        ("asked", "g-0/judge-0.0", "judge/g", prompt),
        ("progress", 0, len(IDS)),
        ("turn_finished", 0, len(IDS), prompt + len(IDS)),
        ("finished", Outcome.FINISHED, len(IDS)),
    ]
    assert engine.requests[0].max_new_tokens == 64
    assert engine.released == ["g-0/judge-0.0"]


async def test_what_was_sampled_before_a_worker_died_is_kept() -> None:
    engine = ChunkEngine(
        [
            [chunk(IDS[:4]), EngineError("the worker died")],
            [chunk(IDS[4:], FinishReason.STOP)],
        ]
    )
    model, _ = judge(engine)
    assert (await model.answer(ask())).text == SAID
    assert engine.requests[1].ids[-4:] == IDS[:4]


async def test_a_worker_that_stays_away_is_waited_for() -> None:
    dead: list[list[TokenChunk | Exception]] = [
        [EngineError("the connection is closed")] for _ in range(3 * MAX_FRUITLESS_TRIES)
    ]
    engine = ChunkEngine([*dead, [chunk(IDS, FinishReason.STOP)]])
    model, dispatcher = judge(engine)
    assert (await model.answer(ask())).text == SAID
    ended = [heard[1] for heard in dispatcher.heard if heard[0] == "finished"]
    assert ended == [Outcome.INFRA_ERROR] * 3 + [Outcome.FINISHED]
    names = [heard[1] for heard in dispatcher.heard if heard[0] == "asked"]
    assert names == [f"g-0/judge-0.{n}" for n in range(4)]


async def test_an_answer_is_cut_at_its_limit_and_read_as_it_is() -> None:
    engine = ChunkEngine([[chunk(IDS[:5], FinishReason.LENGTH)]])
    model, _ = judge(engine, max_tokens=5)
    assert (await model.answer(ask())).text == SAID[:5]


async def test_a_question_over_the_context_cannot_be_put() -> None:
    model, dispatcher = judge(ChunkEngine([]), context_tokens=8)
    with pytest.raises(NoVerdict, match=r"judge\.context_tokens is 8"):
        await model.answer(ask())
    assert dispatcher.heard == []


async def test_whoever_gives_up_waiting_frees_what_the_question_held() -> None:
    begun = asyncio.Event()

    class Never(ChunkEngine):
        async def generate(self, request: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()
            yield

    engine = Never([])
    model, dispatcher = judge(engine)
    asking = asyncio.create_task(model.answer(ask()))
    await begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert dispatcher.heard[-1] == ("finished", Outcome.CANCELLED, 0)
    assert engine.released == ["g-0/judge-0.0"]
