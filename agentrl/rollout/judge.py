"""A judge as one rollout reaches it: asks, reads strictly, tries again, and writes down what it heard.

Whoever answers is behind `JudgeModel`: a worker of the fleet (`agentrl.rollout.judge_fleet`), a
server at a URL (`agentrl.rollout.judge_url`), or the environment's own rule
(`agentrl.rollout.judge_expert`).

Invariants
- Each question ends within `timeout_s`, waits and tries included.
- An answer that cannot be read is asked for again with another seed, at most `tries` times in all;
  then it is `NoVerdict`. Nobody answering is `JudgeLost`. Neither is ever a reward.
- Every question that was asked is in the ledger, with all that the judge said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from agentrl.env import Ledger, seed_of
from agentrl.judging import Criterion, JudgeError, JudgeLost, NoVerdict, Question, Verdict
from agentrl.rollout.judge_text import (
    BETTER,
    Unreadable,
    compare_question,
    messages_for,
    read_verdict,
    rubric_question,
    score_question,
)
from agentrl.types import Judgement, Message, RewardPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request to a judge model."""

    ask_id: str
    """Unique for each request."""
    group_id: str
    """Of the attempt that is judged."""
    question: Question
    messages: Sequence[Message]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    reasoning: str = ""
    """What a model thought before it spoke; it is kept and not read."""
    served_by: str
    num_tokens: int = 0


class JudgeModel(Protocol):
    async def answer(self, ask: Ask) -> Answer:
        """Raises `JudgeLost` when nobody answers, `NoVerdict` when the question cannot be put."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks: an attempt, with the ledger that the answers go to."""

    trajectory_id: str
    group_id: str
    seed: int
    ledger: Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRole:
    """A judge of the run file; `of` binds it to one attempt."""

    name: str
    model: JudgeModel
    tries: int
    timeout_s: float
    brief: bool
    clock: Callable[[], float]

    def of(self, asker: Asker) -> JudgeClient:
        return JudgeClient(self, asker)


class JudgeClient:
    """Implements `Judge` for one attempt."""

    def __init__(self, role: JudgeRole, asker: Asker) -> None:
        self._role = role
        self._asker = asker
        self._numbers = count()

    async def score(self, question: str, of: str, *, top: int = 10) -> Verdict:
        return await self._verdict(score_question(question, of, top))

    async def rubric(self, criteria: Sequence[Criterion], of: str, *, text: str = "") -> Verdict:
        return await self._verdict(rubric_question(text, criteria, of))

    async def compare(self, question: str, first: str, second: str) -> Verdict:
        there = await self._verdict(compare_question(question, first, second))
        back = await self._verdict(compare_question(question, second, first))
        reasons = [verdict.part(BETTER).rationale for verdict in (there, back)]
        rationale = " / ".join(filter(None, reasons))
        value = (there.value + 1.0 - back.value) / 2
        return Verdict((RewardPart(name=BETTER, value=value, rationale=rationale),))

    async def _verdict(self, question: Question) -> Verdict:
        asked = _Asked(self._role, question)
        ledger = self._asker.ledger
        # left as it is by a cancellation, so that whoever cancelled sees what was waited for
        ledger.num_unanswered += 1
        try:
            async with asyncio.timeout(self._role.timeout_s) as deadline:
                verdict = await self._try(asked)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            ledger.num_unanswered -= 1
            reason = f"no verdict after {self._role.timeout_s:g} s"
            ledger.judgements.append(asked.judgement(error=reason))
            raise JudgeLost(f"{self._role.name}: {reason}") from error
        except JudgeError as error:
            ledger.num_unanswered -= 1
            ledger.judgements.append(asked.judgement(error=str(error)))
            raise
        ledger.num_unanswered -= 1
        ledger.judgements.append(asked.judgement(parts=verdict.parts))
        return verdict

    async def _try(self, asked: _Asked) -> Verdict:
        role, asker = self._role, self._asker
        problem = ""
        for _ in range(role.tries):
            number = next(self._numbers)
            answer = await role.model.answer(
                Ask(
                    ask_id=f"{asker.trajectory_id}/{role.name}-{number}",
                    group_id=asker.group_id,
                    question=asked.question,
                    messages=asked.messages,
                    seed=seed_of(asker.seed, role.name, number),
                )
            )
            asked.answers.append(answer)
            try:
                return read_verdict(asked.question, answer.text)
            except Unreadable as error:
                problem = str(error)
        raise NoVerdict(f"{role.name}: nothing readable in {role.tries} tries; the last: {problem}")


class _Asked:
    """A question under way: what was said to it so far."""

    def __init__(self, role: JudgeRole, question: Question) -> None:
        self._role = role
        self._begun = role.clock()
        self.question = question
        self.messages = messages_for(question, brief=role.brief)
        self.answers: list[Answer] = []

    def judgement(
        self, *, parts: tuple[RewardPart, ...] = (), error: str | None = None
    ) -> Judgement:
        return Judgement(
            judge=self._role.name,
            kind=self.question.kind.value,
            prompt="\n".join(message.content for message in self.messages),
            answers=tuple(_said(answer) for answer in self.answers),
            parts=parts,
            error=error,
            served_by=self.answers[-1].served_by if self.answers else "",
            num_tokens=sum(answer.num_tokens for answer in self.answers),
            seconds=self._role.clock() - self._begun,
        )


def _said(answer: Answer) -> str:
    if not answer.reasoning:
        return answer.text
    return f"(thought: {answer.reasoning})\n{answer.text}"
