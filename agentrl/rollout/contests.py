"""Rewards that only the others of a group can give: who did better than whom.

A `@reward` that returns a `Contest` enters its text; when every member of the group has ended, a judge
compares each entry with some of the others, and the value is the share of comparisons it won, ties
counting half. Each is asked in both orders. Members meet their neighbours on a ring, so the number of
questions grows with the group and not with its square.

Invariants
- A member with no decided comparison has no reward: it is unscored, or an error of the
  infrastructure when nobody answered; the others stand.
- A group with a single entry has nothing to compare; its members keep the rest of their reward.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

from agentrl.env import Ledger, seed_of
from agentrl.judging import JudgeError, NoVerdict
from agentrl.rollout.judge import Asker, JudgeRole
from agentrl.types import Entry, Group, Judgement, Outcome, RewardPart, Trajectory

NEIGHBOURS = 2
"""On each side of the ring: a member meets twice as many others, where the group is that large."""


class _Pair(NamedTuple):
    first: int
    second: int


@dataclass(slots=True)
class _Standing:
    """What comparisons said of one member in one contest."""

    credits: list[float] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    failures: list[JudgeError] = field(default_factory=list)


def is_open(group: Group) -> bool:
    """Whether there is something that its members still have to be compared by."""
    return any(trajectory.entries for trajectory in group.trajectories)


async def decide(group: Group, judge: JudgeRole) -> Group:
    """The same group with every contest decided, or its failure in the outcome of the member."""
    members = list(group.trajectories)
    for name in dict.fromkeys(entry.name for member in members for entry in member.entries):
        entries = {
            number: entry
            for number, member in enumerate(members)
            for entry in member.entries
            if entry.name == name
        }
        if len(entries) > 1:
            standings = await _compare_all(group.group_id, entries, judge)
            for number, entry in entries.items():
                members[number] = _placed(members[number], entry, standings[number])
    return replace(group, trajectories=tuple(replace(member, entries=()) for member in members))


async def _compare_all(
    group_id: str, entries: dict[int, Entry], judge: JudgeRole
) -> dict[int, _Standing]:
    standings: defaultdict[int, _Standing] = defaultdict(_Standing)
    async with asyncio.TaskGroup() as tasks:
        for pair in _ring(list(entries)):
            tasks.create_task(_compare(group_id, entries, pair, judge, standings))
    return standings


async def _compare(
    group_id: str,
    entries: dict[int, Entry],
    pair: _Pair,
    judge: JudgeRole,
    standings: defaultdict[int, _Standing],
) -> None:
    first, second = (entries[number] for number in pair)
    ledger = Ledger()
    name = f"{group_id}/{first.name}-{pair.first}-{pair.second}"
    asker = Asker(trajectory_id=name, group_id=group_id, seed=seed_of(name), ledger=ledger)
    try:
        verdict = await judge.of(asker).compare(first.question, first.text, second.text)
    except JudgeError as error:
        for number in pair:
            standings[number].failures.append(error)
    else:
        standings[pair.first].credits.append(verdict.value)
        standings[pair.second].credits.append(1.0 - verdict.value)
        for number in pair:
            standings[number].reasons.append(verdict.parts[0].rationale)
    standings[pair.first].judgements += ledger.judgements


def _ring(numbers: Sequence[int]) -> Iterator[_Pair]:
    """Each with its next neighbours, every pair once."""
    size = len(numbers)
    pairs = {
        tuple(sorted((at, (at + step) % size)))
        for step in range(1, NEIGHBOURS + 1)
        for at in range(size)
        if step % size
    }
    for first, second in sorted(pairs):
        yield _Pair(numbers[first], numbers[second])


def _placed(member: Trajectory, entry: Entry, standing: _Standing) -> Trajectory:
    judged = replace(member, judgements=(*member.judgements, *standing.judgements))
    if not standing.credits:
        failure = standing.failures[-1]
        is_unread = isinstance(failure, NoVerdict)
        return replace(
            judged,
            reward=None,
            reward_parts=(*member.reward_parts, _part(entry, None, str(failure))),
            outcome=Outcome.UNSCORED if is_unread else Outcome.INFRA_ERROR,
            error=f"{entry.name}: {failure}",
        )
    value = fmean(standing.credits)
    reasons = "; ".join(dict.fromkeys(filter(None, standing.reasons)))
    return replace(
        judged,
        reward=None if member.reward is None else member.reward + entry.weight * value,
        reward_parts=(*member.reward_parts, _part(entry, value, reasons)),
    )


def _part(entry: Entry, value: float | None, rationale: str) -> RewardPart:
    return RewardPart(name=entry.name, value=value, weight=entry.weight, rationale=rationale)
