"""The groups of one step, one a line: who won, by how much, and what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import fmean

from agentrl.inspect.address import groups_at
from agentrl.inspect.blocks import Block, Facts, Heading, Note, Sheet, number, one_line
from agentrl.record.index import IndexRow
from agentrl.record.reader import RunReader


def step_view(reader: RunReader, step: int, split: str | None) -> Iterator[Block]:
    groups = groups_at(reader, step, split)
    rows = [row for members in groups.values() for row in members]
    shown_split = rows[0].split
    rewards = [row.reward for row in rows if row.reward is not None]
    outcomes = Counter(row.outcome.value for row in rows)
    yield Heading(f"step {step}, {shown_split}: {len(groups)} groups, {len(rows)} attempts")
    yield Facts(
        (
            ("reward", number(fmean(rewards) if rewards else None)),
            ("outcomes", _counts(outcomes)),
            ("stop reasons", _counts(Counter(row.stop_reason.value for row in rows))),
            ("not trained on", _counts(Counter(row.dropped for row in rows if row.dropped))),
            ("sampled tokens", str(sum(row.num_sampled_tokens for row in rows))),
        )
    )
    columns = (
        "#",
        "group",
        "task",
        "rewards",
        "mean",
        "advantage",
        "turns",
        "tokens",
        "weights",
        "fate",
    )
    yield Sheet(
        columns,
        tuple(_group_row(number_, members) for number_, members in enumerate(groups.values())),
    )
    yield from _replayed(reader, step) if shown_split == "train" else ()
    first = next(iter(groups))
    yield Note(f"\none group:  agentrl inspect show {reader.layout.root}/{step}/{first}")
    evaluated = 0 if shown_split == "eval" else len(reader.rows(split="eval", step=step))
    if evaluated:
        yield Note(
            f"{evaluated} evaluation attempts:  "
            f"agentrl inspect show {reader.layout.root}/{step} --split eval"
        )


def _replayed(reader: RunReader, step: int) -> Iterator[Block]:
    """Groups of earlier steps that this one trained on again."""
    replays = reader.replays(step=step)
    if not replays:
        return
    yield Heading(f"replayed: {len(replays)} groups of earlier steps")
    yield Sheet(
        ("group", "reuse", "steps old"),
        tuple((one_line(r.group_id, 24), str(r.reuse), str(r.staleness)) for r in replays),
    )


def _group_row(position: int, members: list[IndexRow]) -> tuple[str, ...]:
    rewards = [row.reward for row in members if row.reward is not None]
    advantages = [row.advantage for row in members if row.advantage is not None]
    return (
        str(position),
        one_line(members[0].group_id, 24),
        one_line(members[0].task_id, 24),
        one_line(" ".join(number(row.reward, 2) for row in members), 40),
        number(fmean(rewards) if rewards else None, 2),
        f"{number(min(advantages), 2)} .. {number(max(advantages), 2)}" if advantages else "-",
        _range([row.num_turns for row in members]),
        _range([row.num_sampled_tokens for row in members]),
        _range([v for row in members if row.policy_versions for v in row.policy_versions]),
        _fate(members),
    )


def _range(values: list[int]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def _fate(members: list[IndexRow]) -> str:
    fates = Counter(row.fate for row in members)
    return next(iter(fates)) if len(fates) == 1 else _counts(fates)


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
