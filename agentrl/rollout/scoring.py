"""The reward of a finished rollout: the weighted sum of its `@reward`s, and what was given on the way.

A judge's verdict brings its parts and reasons with it: those of a rubric share the weight of their
reward by their own weights.

Invariant: a part that is None, NaN, infinite, or that a judge was asked for in vain, makes the
whole unscored and is named; it never counts as zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentrl.env import Env
from agentrl.judging import JUDGE, Contest, JudgeLost, NoVerdict, Verdict
from agentrl.rollout.usercode import UserCodeError, blaming, call_within
from agentrl.types import Entry, RewardPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    parts: tuple[RewardPart, ...]
    entries: tuple[Entry, ...] = ()
    """What the rest of the group decides; it is no part of the reward yet."""

    @property
    def unscored(self) -> str | None:
        """Why there is no reward, if there is none."""
        missing = [f"{part.name} {part.rationale}" for part in self.parts if part.value is None]
        return ", ".join(missing) or None

    @property
    def reward(self) -> float | None:
        values = [part.value * part.weight for part in self.parts if part.value is not None]
        return sum(values) if len(values) == len(self.parts) else None


async def score(env: Env, *, timeout_s: float) -> Score:
    parts: list[RewardPart] = []
    entries: list[Entry] = []
    for name, weight in env.definition().rewards.items():
        for earned in await _earned(env, name, weight, timeout_s):
            parts.append(earned) if isinstance(earned, RewardPart) else entries.append(earned)
    given: dict[str, float] = {}
    for credit in env.ledger.credits:
        given[credit.name] = given.get(credit.name, 0.0) + credit.value
    parts += [_part(name, value, 1.0) for name, value in given.items()]
    return Score(parts=tuple(parts), entries=tuple(entries))


async def _earned(env: Env, name: str, weight: float, timeout_s: float) -> list[RewardPart | Entry]:
    method = getattr(env, name)
    try:
        value = await call_within(timeout_s, method)
    except NoVerdict as error:
        return [
            RewardPart(name=name, value=None, weight=weight, rationale=f"got no verdict: {error}")
        ]
    except UserCodeError as error:
        if isinstance(error.__cause__, TimeoutError) and env.ledger.num_unanswered:
            raise JudgeLost(f"{name}: a judge still had not answered: {error.args[0]}") from error
        raise
    with blaming(method.__qualname__):
        if isinstance(value, Verdict):
            return list(_judged(name, value, weight))
        if isinstance(value, Contest):
            _ = env.roles[JUDGE]  # a contest that nobody could decide fails here, and is told
            return [Entry(name=name, weight=weight, question=value.question, text=value.text)]
        return [_part(name, value, weight)]


def _judged(name: str, verdict: Verdict, weight: float) -> Iterator[RewardPart]:
    total = sum(part.weight for part in verdict.parts)
    for part in verdict.parts:
        own = f"{name}/{part.name}" if len(verdict.parts) > 1 else name
        yield replace(part, name=own, weight=weight * part.weight / total)


def _part(name: str, value: object, weight: float) -> RewardPart:
    if value is None:
        return RewardPart(name=name, value=None, weight=weight, rationale="returned None")
    if not hasattr(value, "__float__"):
        raise TypeError(f"a reward must be a number or None, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        return RewardPart(name=name, value=None, weight=weight, rationale=f"is {number}")
    return RewardPart(name=name, value=number, weight=weight)
