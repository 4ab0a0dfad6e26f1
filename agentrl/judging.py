"""What an environment asks a judge, and what it hears.

A judge is another language model that reads what a policy did and says what it is worth: a worker
of the run's own fleet, a server at a URL, or, where a rule knows the answer, the rule. An
environment reaches it as `self.roles["judge"]`, usually in a `@reward`:

    @reward(weight=0.4)
    async def manners(self) -> Verdict:
        return await self.roles["judge"].rubric(CRITERIA, of=self.turns[-1].text)

Invariants
- The value of a verdict is between 0 and 1, whatever scale the judge was given.
- A judge that fails raises `JudgeError`; no verdict is ever made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn, Protocol

from agentrl.types import RewardPart

JUDGE = "judge"
"""The role's name, in run files and in `self.roles`."""


class JudgeError(Exception):
    """The judge gave no verdict. The trajectory is not to blame."""


class NoVerdict(JudgeError):
    """It was asked, and nothing it said can be read: what it was to score is unscored."""


class JudgeLost(JudgeError):
    """Nobody answered: refused, broken, or out of time. An error of the infrastructure."""


class QuestionKind(StrEnum):
    SCORE = "score"
    RUBRIC = "rubric"
    COMPARE = "compare"


class Choice(StrEnum):
    """What a judge says of two candidates."""

    FIRST = "A"
    SECOND = "B"
    TIE = "tie"

    @property
    def credit(self) -> float:
        """Of the first candidate."""
        return {Choice.FIRST: 1.0, Choice.SECOND: 0.0, Choice.TIE: 0.5}[self]


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing to look at. The judge answers it with a number from 0 to `top`."""

    name: str
    """One word; it names the part of the reward."""
    question: str = ""
    weight: float = 1.0
    top: int = 1

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"a criterion's name must be one word, got {self.name!r}")
        if self.weight <= 0 or self.top < 1:
            raise ValueError(
                f"criterion {self.name}: wanted weight > 0 and top >= 1, "
                f"got {self.weight} and {self.top}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a judge in one request."""

    kind: QuestionKind
    text: str
    """What to judge by, in words; may be empty where the criteria say it all."""
    criteria: tuple[Criterion, ...] = ()
    """One for a score, any number for a rubric, none for a comparison."""
    material: tuple[str, ...]
    """What is judged: one text, or the two that are compared."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's answer: a part for each criterion. As a number it is their weighted mean."""

    parts: tuple[RewardPart, ...]

    @property
    def value(self) -> float:
        values = [(part.value, part.weight) for part in self.parts if part.value is not None]
        assert len(values) == len(self.parts), "a verdict is whole"
        return sum(value * weight for value, weight in values) / sum(w for _, w in values)

    def __float__(self) -> float:
        return self.value

    def part(self, name: str) -> RewardPart:
        return next(part for part in self.parts if part.name == name)

    @property
    def rationale(self) -> str:
        return "; ".join(f"{part.name}: {part.rationale}" for part in self.parts if part.rationale)


@dataclass(frozen=True, slots=True)
class Contest:
    """A reward's value that is decided when the whole group has ended.

    A judge compares `text` with what other members of the group entered; the value is the share
    of comparisons it won. An attempt that has nobody to be compared with, as in evaluation, keeps
    the rest of its reward.
    """

    question: str
    text: str


class Judge(Protocol):
    """`self.roles["judge"]`. Every call raises `JudgeError` rather than return without a verdict."""

    async def score(self, question: str, of: str, *, top: int = 10) -> Verdict:
        """How good `of` is; the judge is given a scale from 0 to `top`."""
        ...

    async def rubric(self, criteria: Sequence[Criterion], of: str, *, text: str = "") -> Verdict:
        """Each criterion by itself; `text` says what they have in common."""
        ...

    async def compare(self, question: str, first: str, second: str) -> Verdict:
        """1 when `first` is better, 0 when `second` is, 0.5 for a tie.

        Asked twice, in both orders, because judges prefer what they read first.
        """
        ...


class Roles(dict[str, Judge]):
    """`self.roles`: other models, by the name of their section in the run file. Never trained."""

    def __missing__(self, name: str) -> NoReturn:
        raise LookupError(
            f"self.roles[{name!r}]: this run has no such role; add a section `{name}` to its file"
        )
