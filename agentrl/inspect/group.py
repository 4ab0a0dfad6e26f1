"""The members of a group side by side: where they part, and which part was worth it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentrl.inspect.blocks import (
    NOTHING,
    Block,
    Heading,
    Note,
    Passage,
    Sheet,
    number,
    one_line,
    visible,
)
from agentrl.record.index import IndexRow
from agentrl.record.reader import RecordedTrajectory, RunReader
from agentrl.types import Turn

CELL_WIDTH = 28


def group_view(reader: RunReader, members: list[IndexRow], *, width: int) -> Iterator[Block]:
    first = members[0]
    yield Heading(f"group {first.group_id} at step {first.step}: task {visible(first.task_id)}")
    recorded = [reader.trajectory(row) for row in members]
    for message in recorded[0].trajectory.messages:
        yield Passage(message.role, visible(message.content))
    side_by_side = max(1, (width - 14) // (CELL_WIDTH + 2))
    for start in range(0, len(recorded), side_by_side):
        yield Heading("members" if start == 0 else "more members")
        yield _members(recorded[start : start + side_by_side], _parting_turn(recorded))
    yield Note("\n≠ marks the first turn in which members differ")
    address = f"{reader.layout.root}/{first.step}/{first.group_id}/{first.sibling}"
    yield Note(f"one attempt:  agentrl inspect show {address}")


def _members(recorded: Sequence[RecordedTrajectory], parting: int | None) -> Sheet:
    rows = [
        (
            "",
            *(
                f"[{r.row.sibling}]{f' try {r.row.attempt}' if r.row.attempt else ''}"
                for r in recorded
            ),
        ),
        ("reward", *(number(r.trajectory.reward) for r in recorded)),
        *_reward_parts(recorded),
        ("advantage", *(number(r.fate.advantage) for r in recorded)),
        ("outcome", *(r.trajectory.outcome.value for r in recorded)),
        ("stop reason", *(r.trajectory.stop_reason.value for r in recorded)),
        ("fate", *(r.row.fate for r in recorded)),
        ("sampled", *(str(r.trajectory.num_sampled_tokens) for r in recorded)),
        ("seconds", *(number(r.trajectory.seconds, 1) for r in recorded)),
    ]
    for turn in range(max(len(r.trajectory.turns) for r in recorded)):
        label = f"turn {turn}{' ≠' if turn == parting else ''}"
        rows.append((label, *(_said(r.trajectory.turns, turn) for r in recorded)))
        rows.append(("", *(_answered(r.trajectory.turns, turn) for r in recorded)))
    return Sheet(rows[0], tuple(row for row in rows[1:] if any(row)))


def _reward_parts(recorded: Sequence[RecordedTrajectory]) -> list[tuple[str, ...]]:
    names = dict.fromkeys(part.name for r in recorded for part in r.trajectory.reward_parts)
    if len(names) < 2:
        return []
    by_member = [{part.name: part.value for part in r.trajectory.reward_parts} for r in recorded]
    return [
        (f"  {visible(name)}", *(number(values.get(name)) for values in by_member))
        for name in names
    ]


def _parting_turn(recorded: Sequence[RecordedTrajectory]) -> int | None:
    """The first turn that not all members played alike."""
    for turn in range(max(len(r.trajectory.turns) for r in recorded)):
        if len({_said(r.trajectory.turns, turn) for r in recorded}) > 1:
            return turn
    return None


def _said(turns: Sequence[Turn], index: int) -> str:
    if index >= len(turns):
        return ""
    turn = turns[index]
    calls = [f"{call.name} {' '.join(map(str, call.arguments.values()))}" for call in turn.calls]
    return one_line("; ".join(filter(None, [turn.text.strip(), *calls])) or NOTHING, CELL_WIDTH)


def _answered(turns: Sequence[Turn], index: int) -> str:
    if index >= len(turns):
        return ""
    replies = [turns[index].reply or ""] if turns[index].reply is not None else []
    answers = [*(result.text.rstrip("\n") for result in turns[index].results), *replies]
    return one_line(f"-> {' | '.join(answers)}", CELL_WIDTH) if answers else ""
