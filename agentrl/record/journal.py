"""The journal: how far every open attempt has come, on disk before anybody acts on it.

`journal/000003-runner-0.000012.jsonl`: part 12 of what one process wrote. Processes are numbered as
they start, so of two openings of the same attempt the one in the later file counts. Lines of an
attempt:

  open    who it is, and the ids that its conversation begins with
  turn    what the policy said in one turn, written before any of its calls runs
  answer  what tools or the environment answered, and the ids that this added
  end     the whole trajectory

It serves two readers: a run that goes on after its processes were lost, and whoever looks at a run
while it goes on.

Invariants
- A turn that cannot be read, or is missing, ends what is known of its attempt; what is known is
  always a beginning of what was played.
- A journaled token is the sampled one: its log-prob comes back as the same 32-bit number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from agentrl.record.codec import (
    TOKEN,
    Fate,
    decode,
    decode_message,
    decode_turn,
    encode,
    token_columns,
)
from agentrl.record.jsonl import read_lines, to_line
from agentrl.types import Entry, Json, Message, StopReason, ToolResult, Trajectory, Turn

FORMAT = 1
"""Attempts in a journal of another format are not read: they start again."""
_NOT_ENDED = Fate(step=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came after a turn."""

    results: tuple[ToolResult, ...] = ()
    reply: str | None = None
    ids: Sequence[int] = ()
    """Scaffold and text that the context got; none when no turn could follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """One turn as the engine gave it. The three columns have equal lengths."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    policy_versions: Sequence[int]
    said: Turn
    """As the chat format read it."""
    cut: StopReason | None = None
    """The limit that ended turn and attempt."""
    answer: Answer | None = None
    """None: not known, because the process was lost before it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledAttempt:
    """An attempt as far as the journal knows it."""

    trajectory_id: str
    task_id: str
    group_id: str
    sibling: int
    attempt: int
    split: str
    prompt_ids: Sequence[int]
    messages: tuple[Message, ...]
    started_s: float
    """Wall-clock time of its first start."""
    continued: int = 0
    """How often it went on in another process."""
    turns: tuple[SampledTurn, ...] = ()
    seconds: float = 0.0
    """Spent on it up to the last line."""
    tool_seconds: float = 0.0
    ended: Trajectory | None = None

    @property
    def newest_version(self) -> int:
        """Of the weights that sampled it; -1 when nothing was sampled."""
        ended = None if self.ended is None else self.ended.newest_policy_version
        turns = (max(turn.policy_versions) for turn in self.turns)
        return max(turns, default=-1) if ended is None else ended


# ------------------------------------------------------------------------------------- lines


def open_line(attempt: JournaledAttempt) -> bytes:
    return to_line(
        {
            "kind": "open",
            "format": FORMAT,
            "trajectory_id": attempt.trajectory_id,
            "task_id": attempt.task_id,
            "group_id": attempt.group_id,
            "sibling": attempt.sibling,
            "attempt": attempt.attempt,
            "split": attempt.split,
            "prompt_ids": attempt.prompt_ids,
            "messages": attempt.messages,
            "started_s": attempt.started_s,
            "continued": attempt.continued,
        }
    )


def turn_line(
    trajectory_id: str, number: int, turn: SampledTurn, *, seconds: float, tool_seconds: float
) -> bytes:
    return to_line(
        {
            "kind": "turn",
            "trajectory_id": trajectory_id,
            "turn": number,
            "ids": turn.ids,
            "logprobs": np.array(turn.logprobs, np.float32),
            "policy_versions": [[v, len(list(run))] for v, run in groupby(turn.policy_versions)],
            "said": turn.said,
            "cut": turn.cut,
            "seconds": seconds,
            "tool_seconds": tool_seconds,
        }
    )


def answer_line(
    trajectory_id: str, number: int, answer: Answer, *, seconds: float, tool_seconds: float
) -> bytes:
    return to_line(
        {
            "kind": "answer",
            "trajectory_id": trajectory_id,
            "turn": number,
            "results": answer.results,
            "reply": answer.reply,
            "ids": answer.ids,
            "seconds": seconds,
            "tool_seconds": tool_seconds,
        }
    )


def end_line(trajectory: Trajectory, tokens: NDArray[np.void]) -> bytes:
    """`tokens` are its `token_columns`."""
    return to_line(
        {
            "kind": "end",
            **encode(trajectory, _NOT_ENDED, tokens),
            "entries": trajectory.entries,
            "columns": {name: np.ascontiguousarray(tokens[name]) for name in TOKEN.names or ()},
        }
    )


def attempt_lines(attempt: JournaledAttempt) -> bytes:
    """All that is known of an attempt, as another process would have written it."""
    lines = [open_line(attempt)]
    spent = {"seconds": attempt.seconds, "tool_seconds": attempt.tool_seconds}
    for number, turn in enumerate(attempt.turns):
        lines.append(turn_line(attempt.trajectory_id, number, turn, **spent))
        if turn.answer is not None:
            lines.append(answer_line(attempt.trajectory_id, number, turn.answer, **spent))
    if attempt.ended is not None:
        lines.append(end_line(attempt.ended, token_columns(attempt.ended)))
    return b"".join(lines)


def ended_attempt(trajectory: Trajectory) -> JournaledAttempt:
    """Of which nothing but its end is of interest."""
    return JournaledAttempt(
        trajectory_id=trajectory.trajectory_id,
        task_id=trajectory.task_id,
        group_id=trajectory.group_id,
        sibling=trajectory.sibling,
        attempt=trajectory.attempt,
        split=trajectory.split,
        prompt_ids=(),
        messages=trajectory.messages,
        started_s=trajectory.started_s,
        ended=trajectory,
    )


# ----------------------------------------------------------------------------------- reading


def journal_parts(folder: Path) -> list[Path]:
    """In the order in which their processes started, and each wrote them."""
    return sorted(folder.glob("*.jsonl"))


def read_journal(parts: Sequence[Path]) -> dict[str, JournaledAttempt]:
    """Every attempt of some parts, ended ones too, as far as its newest opening got."""
    attempts: dict[str, _Reading] = {}
    for part in parts:
        for line in _lines_of(part):
            _take_in(line, attempts)
    return {name: reading.attempt() for name, reading in attempts.items()}


@dataclass(slots=True)
class _Reading:
    opened: Mapping[str, Json]
    turns: list[SampledTurn] = field(default_factory=list)
    seconds: float = 0.0
    tool_seconds: float = 0.0
    ended: Trajectory | None = None
    is_broken: bool = False
    """A turn is missing: later ones say nothing without it."""

    def attempt(self) -> JournaledAttempt:
        opened = dict(self.opened)
        for name in ("kind", "format"):
            del opened[name]
        opened["messages"] = tuple(decode_message(message) for message in opened["messages"])
        return JournaledAttempt(
            **opened,
            turns=tuple(self.turns),
            seconds=self.seconds,
            tool_seconds=self.tool_seconds,
            ended=self.ended,
        )


def _take_in(line: Mapping[str, Any], attempts: dict[str, _Reading]) -> None:
    name = line["trajectory_id"]
    if line["kind"] == "open":
        attempts.pop(name, None)
        if line["format"] == FORMAT:
            attempts[name] = _Reading(line)
        return
    reading = attempts.get(name)
    if reading is None:
        return
    match line["kind"]:
        case "turn":
            is_next = line["turn"] == len(reading.turns) and (
                not reading.turns or reading.turns[-1].answer is not None
            )
            reading.is_broken |= not is_next
            if not reading.is_broken:
                reading.turns.append(_read_turn(line))
        case "answer":
            reading.is_broken |= line["turn"] != len(reading.turns) - 1
            if not reading.is_broken:
                reading.turns[-1] = _answered(reading.turns[-1], line)
        case "end":
            reading.ended = _read_end(line)
            return
    if not reading.is_broken:
        reading.seconds, reading.tool_seconds = line["seconds"], line["tool_seconds"]


def _read_turn(line: Mapping[str, Any]) -> SampledTurn:
    return SampledTurn(
        ids=line["ids"],
        logprobs=np.array(line["logprobs"], np.float32).tolist(),
        policy_versions=[v for v, length in line["policy_versions"] for _ in range(length)],
        said=decode_turn(line["said"]),
        cut=None if line["cut"] is None else StopReason(line["cut"]),
    )


def _answered(turn: SampledTurn, line: Mapping[str, Any]) -> SampledTurn:
    answer = Answer(
        results=tuple(ToolResult(**result) for result in line["results"]),
        reply=line["reply"],
        ids=line["ids"],
    )
    return replace(turn, answer=answer)


def _read_end(line: Mapping[str, Any]) -> Trajectory:
    columns = {
        name: np.array(line["columns"][name], dtype=TOKEN[name]) for name in TOKEN.names or ()
    }
    entries = tuple(Entry(**entry) for entry in line["entries"])
    return replace(decode(line, columns), entries=entries)


def _lines_of(part: Path) -> Iterator[Mapping[str, Any]]:
    """Up to the first that is not whole: what a crash of the machine left behind it is not ours."""
    try:
        for _, line in read_lines(part):
            yield line
    except orjson.JSONDecodeError:
        return
