"""The reward of a finished rollout: the weighted sum of its `@reward`s, and what was given on the way.

Invariant: a part that is None, NaN or infinite makes the whole unscored and is named; it never
counts as zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentrl.env import Env
from agentrl.rollout.usercode import blaming, call_within
from agentrl.types import RewardPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    parts: tuple[RewardPart, ...]

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
    parts = []
    for name, weight in env.definition().rewards.items():
        method = getattr(env, name)
        value = await call_within(timeout_s, method)
        with blaming(method.__qualname__):
            parts.append(_part(name, value, weight))
    given: dict[str, float] = {}
    for credit in env.ledger.credits:
        with blaming(f"give({credit.value!r}, {credit.name!r})"):
            given[credit.name] = given.get(credit.name, 0.0) + float(credit.value)
    return Score(parts=(*parts, *(_part(name, value, 1.0) for name, value in given.items())))


def _part(name: str, value: object, weight: float) -> RewardPart:
    if value is None:
        return RewardPart(name=name, value=None, weight=weight, rationale="returned None")
    if not hasattr(value, "__float__"):
        raise TypeError(f"a reward must be a number or None, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        return RewardPart(name=name, value=None, weight=weight, rationale=f"is {number}")
    return RewardPart(name=name, value=number, weight=weight)
