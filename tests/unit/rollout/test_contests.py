"""Who did better than whom: groups whose members are compared by a judge."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from rollout_doubles import TOKENIZER, attempt_at

from agentrl import Contest, Env, Task, Turn, reward
from agentrl.chat.plain import PlainFormat
from agentrl.engine.engine import Sampling
from agentrl.judging import JudgeLost
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.contests import decide, is_open
from agentrl.rollout.judge import Answer, Ask, JudgeRole
from agentrl.rollout.local import LocalDispatcher, ScriptedEngine
from agentrl.rollout.runner import RolloutRunner
from agentrl.types import Group, Outcome, Trajectory


class Longest(Env):
    """Half for being right, half for being longer than the others."""

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        yield Task("t", "go")

    @reward(weight=0.5)
    async def said(self) -> float:
        return float(bool(self.turns[-1].text))

    @reward(weight=0.5)
    async def longer(self) -> Contest:
        return Contest("Which is longer?", self.turns[-1].text)


@dataclass
class ByLength:
    """Knows which of two is longer; breaks, or mumbles, over some texts."""

    breaks_on: str | None = None
    mumbles_on: str | None = None
    asks: list[Ask] = field(default_factory=list)

    async def answer(self, ask: Ask) -> Answer:
        self.asks.append(ask)
        first, second = ask.question.material
        if self.breaks_on in (first, second):
            raise JudgeLost("gone")
        if self.mumbles_on in (first, second):
            return Answer(text="hm", served_by="m")
        value = "tie" if len(first) == len(second) else "AB"[len(second) > len(first)]
        return Answer(text=f"better: by length => {value}", served_by="m")


def role(model: ByLength) -> JudgeRole:
    return JudgeRole(
        name="judge", model=model, tries=2, timeout_s=30.0, brief=True, clock=time.monotonic
    )


async def played(text: str, sibling: int) -> Trajectory:
    chat = PlainFormat(TOKENIZER)
    engine = ScriptedEngine(chat)
    engine.follow(f"g-{sibling}", iter([Turn(text)]))
    runner = RolloutRunner(
        env_class=Longest,
        chat=chat,
        limits=RolloutLimits(),
        sampling=Sampling(),
        dispatcher=LocalDispatcher(engine),
        roles={"judge": role(ByLength())},
    )
    return await runner.run(
        attempt_at(Task("t", "go"), sibling=sibling, trajectory_id=f"g-{sibling}")
    )


async def group_of(*texts: str) -> Group:
    members = [await played(text, sibling) for sibling, text in enumerate(texts)]
    return Group(group_id="g", task_id="t", size=len(texts), trajectories=tuple(members))


async def test_an_attempt_waits_for_its_group_with_what_it_has() -> None:
    trajectory = await played("abc", 0)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.FINISHED, 0.5)
    assert [(e.name, e.weight, e.text) for e in trajectory.entries] == [("longer", 0.5, "abc")]
    group = await group_of("a", "b")
    assert is_open(group)
    assert not is_open(await decide(group, role(ByLength())))


async def test_who_wins_more_gets_more_and_ties_count_half() -> None:
    decided = await decide(await group_of("aaaa", "bb", "c", "dd"), role(ByLength()))
    values = [t.reward_parts[-1].value for t in decided.trajectories]
    assert values == [1.0, 0.5, 0.0, 0.5]
    assert [t.reward for t in decided.trajectories] == [1.0, 0.75, 0.5, 0.75]
    first = decided.trajectories[0]
    assert first.reward_parts[-1].rationale == "by length / by length"
    assert all(j.kind == "compare" for t in decided.trajectories for j in t.judgements)


async def test_each_pair_is_asked_once_in_both_orders_and_members_meet_a_few() -> None:
    model = ByLength()
    await decide(await group_of(*("x" * n for n in range(1, 9))), role(model))
    materials = [ask.question.material for ask in model.asks]
    assert len(materials) == len(set(materials)) == 8 * 2 * 2
    assert {(b, a) for a, b in materials} == set(materials)
    met = [sum(text == first for first, _ in materials) for text in {a for a, _ in materials}]
    assert met == [4] * 8
    assert len({ask.ask_id for ask in model.asks}) == len(materials)


async def test_one_alone_has_nobody_to_be_compared_with() -> None:
    model = ByLength()
    decided = await decide(await group_of("abc"), role(model))
    (only,) = decided.trajectories
    assert (only.reward, only.entries, model.asks) == (0.5, (), [])


@pytest.mark.parametrize(
    ("model", "outcome"),
    [
        (ByLength(breaks_on="bad"), Outcome.INFRA_ERROR),
        (ByLength(mumbles_on="bad"), Outcome.UNSCORED),
    ],
)
async def test_a_member_that_no_judge_could_compare_has_no_reward(
    model: ByLength, outcome: Outcome
) -> None:
    decided = await decide(await group_of("aaaa", "bad", "c"), role(model))
    first, bad, last = decided.trajectories
    assert (bad.outcome, bad.reward) == (outcome, None)
    assert bad.reward_parts[-1].value is None
    assert "longer: " in (bad.error or "")
    assert (first.reward, last.reward) == (1.0, 0.5)
    assert first.outcome is Outcome.FINISHED


async def test_an_attempt_that_is_unscored_enters_no_contest() -> None:
    class Unsure(Longest):
        @reward
        async def said(self) -> None:  # type: ignore[override]  # None: cannot be scored
            return None

    chat = PlainFormat(TOKENIZER)
    runner = RolloutRunner(
        env_class=Unsure,
        chat=chat,
        limits=RolloutLimits(),
        sampling=Sampling(),
        dispatcher=LocalDispatcher(ScriptedEngine(chat)),
        roles={"judge": role(ByLength())},
    )
    trajectory = await runner.run(attempt_at(Task("t", "go")))
    assert (trajectory.outcome, trajectory.entries) == (Outcome.UNSCORED, ())
