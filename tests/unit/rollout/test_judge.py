"""What a rollout makes of a judge: verdicts, tries, and every way in which there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from rollout_doubles import TOKENIZER, attempt_at

from agentrl import Criterion, Env, Task, ToolCall, Turn, Verdict, reward, tool
from agentrl.chat.plain import PlainFormat
from agentrl.engine.engine import Sampling
from agentrl.env import Ledger
from agentrl.judging import JudgeError, JudgeLost, NoVerdict
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.judge import Answer, Ask, Asker, JudgeClient, JudgeRole
from agentrl.rollout.local import LocalDispatcher, ScriptedEngine
from agentrl.rollout.runner import RolloutRunner
from agentrl.types import Outcome, StopReason, Trajectory

CRITERIA = (Criterion("polite", weight=3.0), Criterion("asked"))
GOOD = "polite: thanks => 1\nasked: never => 0"


@dataclass
class Saying:
    """A judge model that gives prepared answers in turn; an exception among them is raised."""

    answers: Sequence[str | Exception]
    asks: list[Ask] = field(default_factory=list)

    async def answer(self, ask: Ask) -> Answer:
        said = self.answers[len(self.asks)]
        self.asks.append(ask)
        if isinstance(said, Exception):
            raise said
        return Answer(text=said, served_by="genrm-0", num_tokens=7)


class Silent:
    async def answer(self, ask: Ask) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError


def role(model: Any, **changes: Any) -> JudgeRole:
    given = JudgeRole(
        name="judge", model=model, tries=3, timeout_s=30.0, brief=True, clock=time.monotonic
    )
    return replace(given, **changes)


def client(model: Any, **changes: Any) -> tuple[JudgeClient, Ledger]:
    ledger = Ledger()
    asker = Asker(trajectory_id="g-0", group_id="g", seed=5, ledger=ledger)
    return role(model, **changes).of(asker), ledger


async def test_an_unreadable_answer_is_asked_for_again_with_another_seed() -> None:
    model = Saying(["hm", "polite: => 2\nasked: => 1", GOOD])
    judge, ledger = client(model)
    verdict = await judge.rubric(CRITERIA, "A Thanks")
    assert verdict.value == 0.75
    assert len({ask.seed for ask in model.asks}) == 3
    assert len({ask.ask_id for ask in model.asks}) == 3
    (judgement,) = ledger.judgements
    assert judgement.answers == ("hm", "polite: => 2\nasked: => 1", GOOD)
    assert (judgement.error, judgement.served_by, judgement.num_tokens) == (None, "genrm-0", 21)
    assert judgement.prompt == "polite asked\nA Thanks"
    assert [part.rationale for part in judgement.parts] == ["thanks", "never"]


async def test_tries_are_bounded_and_what_was_said_is_kept() -> None:
    model = Saying(["one", "two", "three", GOOD])
    judge, ledger = client(model)
    with pytest.raises(NoVerdict, match="nothing readable in 3 tries"):
        await judge.rubric(CRITERIA, "A Thanks")
    (judgement,) = ledger.judgements
    assert judgement.answers == ("one", "two", "three")
    assert "nothing readable" in (judgement.error or "")
    assert ledger.num_unanswered == 0


async def test_the_same_attempt_asks_the_same_way() -> None:
    first, again = Saying(["x", GOOD]), Saying(["x", GOOD])
    for model in (first, again):
        judge, _ = client(model)
        await judge.rubric(CRITERIA, "A Thanks")
    assert [ask.seed for ask in first.asks] == [ask.seed for ask in again.asks]


async def test_every_question_has_a_deadline() -> None:
    judge, ledger = client(Silent(), timeout_s=0.05)
    with pytest.raises(JudgeLost, match=r"no verdict after 0\.05 s"):
        await judge.score("how good?", "x")
    assert "no verdict" in (ledger.judgements[0].error or "")


async def test_a_comparison_is_asked_in_both_orders() -> None:
    model = Saying(["better: first => A"] * 2)
    judge, _ = client(model)
    biased = await judge.compare("which?", "x", "y")
    assert biased.value == 0.5
    assert [ask.question.material for ask in model.asks] == [("x", "y"), ("y", "x")]
    judge, _ = client(Saying(["better: => A", "better: => B"]))
    assert (await judge.compare("which?", "x", "y")).value == 1.0


# ------------------------------------------------------------------------------- in a rollout


class Judged(Env):
    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        yield Task("t", "go")

    @reward(weight=0.5)
    async def manners(self) -> Verdict:
        return await self.roles["judge"].rubric(CRITERIA, self.turns[-1].text)

    @reward(weight=0.5)
    async def length(self) -> float:
        return 1.0


async def played(
    model: Any, env_class: type[Env] = Judged, limits: dict[str, Any] | None = None, **changes: Any
) -> Trajectory:
    chat = PlainFormat(TOKENIZER, env_class.definition().schemas)
    engine = ScriptedEngine(chat)
    engine.follow("g-0", iter([Turn("Thanks")]))
    runner = RolloutRunner(
        env_class=env_class,
        chat=chat,
        limits=RolloutLimits(**(limits or {})),
        sampling=Sampling(),
        dispatcher=LocalDispatcher(engine),
        roles={"judge": role(model, **changes)},
    )
    return await runner.run(attempt_at(Task("t", "go")))


async def test_a_rubric_becomes_parts_with_reasons_that_share_its_weight() -> None:
    trajectory = await played(Saying([GOOD]))
    assert [(p.name, p.value, p.weight, p.rationale) for p in trajectory.reward_parts] == [
        ("manners/polite", 1.0, 0.375, "thanks"),
        ("manners/asked", 0.0, 0.125, "never"),
        ("length", 1.0, 0.5, ""),
    ]
    assert trajectory.reward == 0.875
    assert trajectory.outcome is Outcome.FINISHED
    assert [judgement.answers for judgement in trajectory.judgements] == [(GOOD,)]


async def test_a_single_part_has_the_name_of_its_reward() -> None:
    class Scored(Judged):
        @reward
        async def manners(self) -> Verdict:
            return await self.roles["judge"].score("how good?", "x", top=4)

    trajectory = await played(Saying(["score: quite => 3"]), Scored)
    assert trajectory.reward_parts[0].name == "manners"
    assert trajectory.reward_parts[0].rationale == "quite"
    assert trajectory.reward == 0.75 + 0.5


async def test_a_judge_that_cannot_be_read_leaves_the_attempt_unscored() -> None:
    trajectory = await played(Saying(["?"] * 3))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.UNSCORED, None)
    assert trajectory.stop_reason is StopReason.DONE
    assert "manners got no verdict: judge: nothing readable" in (trajectory.error or "")
    assert trajectory.judgements[0].answers == ("?", "?", "?")


@pytest.mark.parametrize(
    ("model", "timeout_s"), [(Saying([JudgeLost("status 500")]), 30.0), (Silent(), 0.05)]
)
async def test_a_judge_that_does_not_answer_is_the_infrastructures_fault(
    model: Any, timeout_s: float
) -> None:
    trajectory = await played(model, timeout_s=timeout_s)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRA_ERROR, None)
    assert trajectory.judgements[0].error


async def test_waiting_for_a_judge_is_not_the_environments_slowness() -> None:
    """The reward's own deadline passes while the judge still has time."""
    trajectory = await played(Silent(), limits={"trajectory_timeout_s": 0.05})
    assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRA_ERROR, None)
    assert "a judge still had not answered" in (trajectory.error or "")


def asking_from(place: str) -> type[Env]:
    async def ask(self: Any, *_: Any) -> Any:
        await self.roles["judge"].score("?", "x")

    members: dict[str, Callable[..., Any]] = {place: ask}
    return type("Asks", (Judged,), members)


@pytest.mark.parametrize("place", ["start", "reply"])
@pytest.mark.parametrize("answers", [["?"] * 3, [JudgeLost("gone")]])
async def test_a_judge_that_fails_in_the_middle_ends_the_attempt_without_a_score(
    place: str, answers: list[str | Exception]
) -> None:
    trajectory = await played(Saying(answers), asking_from(place))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRA_ERROR, None)


async def test_the_wall_clock_does_not_blame_a_policy_for_its_judge() -> None:
    trajectory = await played(Silent(), asking_from("reply"), limits={"trajectory_timeout_s": 0.05})
    assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRA_ERROR, None)


async def test_a_tool_that_asks_in_vain_is_no_answer_to_the_model() -> None:
    class Asks(Judged):
        @tool
        async def look(self) -> str:
            return str(float(await self.roles["judge"].score("?", "x")))

    chat = PlainFormat(TOKENIZER, Asks.definition().schemas)
    engine = ScriptedEngine(chat)
    engine.follow("g-0", iter([Turn(calls=(ToolCall("look"),))]))
    runner = RolloutRunner(
        env_class=Asks,
        chat=chat,
        limits=RolloutLimits(),
        sampling=Sampling(),
        dispatcher=LocalDispatcher(engine),
        roles={"judge": role(Saying([JudgeLost("gone")]))},
    )
    trajectory = await runner.run(attempt_at(Task("t", "go")))
    assert trajectory.outcome is Outcome.INFRA_ERROR


async def test_an_environment_without_a_judge_in_its_run_says_so() -> None:
    chat = PlainFormat(TOKENIZER)
    runner = RolloutRunner(
        env_class=Judged,
        chat=chat,
        limits=RolloutLimits(),
        sampling=Sampling(),
        dispatcher=LocalDispatcher(ScriptedEngine(chat)),
    )
    trajectory = await runner.run(attempt_at(Task("t", "go")))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.ENV_ERROR, None)
    assert "section `judge`" in (trajectory.error or "")


async def test_what_a_judge_raises_is_one_family() -> None:
    assert issubclass(NoVerdict, JudgeError)
    assert issubclass(JudgeLost, JudgeError)
