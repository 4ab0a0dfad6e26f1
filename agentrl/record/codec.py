"""A trajectory as one line of text and a few token columns, and back.

The line holds what people read: opening messages, then for each turn only what it adds, rewards
with their parts, how it ended, where it was served. It also holds the shape of the token rows: a
run of `[origin, turn, length]` a segment. The ids, log-probs and policy versions themselves are
columns of equal length, back to back in segment order; where a segment was not sampled they hold
0 and -1.

Invariants
- `decode(encode(t))` equals `t`, except that a float JSON cannot hold (NaN, infinity) comes back
  as None where the type allows it and as NaN elsewhere, and text that is not valid Unicode comes
  back escaped.
- A line says why a trajectory was not trained on, or the step it was trained in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.types import (
    Json,
    Judgement,
    Message,
    Origin,
    Outcome,
    Placement,
    RewardPart,
    Row,
    Segment,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)

TOKEN = np.dtype([("ids", "<i4"), ("logprobs", "<f4"), ("policy_versions", "<i4")])
"""One token in an open chunk; a sealed chunk holds each field as a column of its own."""
_NO_IDS = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of a trajectory after it ended."""

    step: int
    """The optimizer step it belongs to: trained in it, dropped from it, or evaluated at it."""
    dropped: str | None = None
    """Why it was not trained on; None when it was, and for evaluation."""
    advantage: float | None = None


# ---------------------------------------------------------------------------- to the record


def encode(trajectory: Trajectory, fate: Fate, tokens: NDArray[np.void]) -> dict[str, Json]:
    """The line of a trajectory whose `token_columns` are `tokens`.

    Values of it may be dataclasses, which `to_line` writes as mappings of their fields.
    """
    versions = tokens["policy_versions"]
    sampled = versions[versions >= 0]
    return {
        "trajectory_id": trajectory.trajectory_id,
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "sibling": trajectory.sibling,
        "attempt": trajectory.attempt,
        "split": trajectory.split,
        "step": fate.step,
        "dropped": fate.dropped,
        "advantage": fate.advantage,
        "reward": trajectory.reward,
        "reward_parts": trajectory.reward_parts,
        "judgements": trajectory.judgements,
        "metrics": trajectory.metrics,
        "stop_reason": trajectory.stop_reason,
        "outcome": trajectory.outcome,
        "error": trajectory.error,
        "num_turns": len(trajectory.turns),
        "num_tokens": len(tokens),
        "num_sampled_tokens": len(sampled),
        "policy_versions": (sampled.min(), sampled.max()) if len(sampled) else None,
        "seed": trajectory.seed,
        "started_s": trajectory.started_s,
        "seconds": trajectory.seconds,
        "tool_seconds": trajectory.tool_seconds,
        "continued": trajectory.continued,
        "diverged": trajectory.diverged,
        "messages": trajectory.messages,
        "turns": trajectory.turns,
        "placements": trajectory.placements,
        "rows": [[[s.origin, s.turn, len(s.ids)] for s in row] for row in trajectory.rows],
    }


def token_columns(trajectory: Trajectory) -> NDArray[np.void]:
    """All tokens of a trajectory, in the order of its line's `rows`."""
    segments = [segment for row in trajectory.rows for segment in row]
    ids = np.concatenate([_NO_IDS, *(segment.ids for segment in segments)])
    tokens = np.zeros(len(ids), dtype=TOKEN)
    tokens["ids"] = ids
    logprobs, versions = tokens["logprobs"], tokens["policy_versions"]
    versions[:] = -1
    end = 0
    for segment in segments:
        start, end = end, end + len(segment.ids)
        if segment.logprobs is not None and segment.policy_versions is not None:
            logprobs[start:end] = segment.logprobs
            versions[start:end] = segment.policy_versions
    return tokens


# ---------------------------------------------------------------------------- from the record


def decode(line: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> Trajectory:
    """The trajectory of a line and its slice of the token columns."""
    return Trajectory(
        trajectory_id=line["trajectory_id"],
        task_id=line["task_id"],
        group_id=line["group_id"],
        sibling=line["sibling"],
        attempt=line["attempt"],
        split=line["split"],
        rows=decode_rows(line["rows"], columns),
        turns=tuple(decode_turn(turn) for turn in line["turns"]),
        messages=tuple(decode_message(message) for message in line["messages"]),
        reward=line["reward"],
        reward_parts=tuple(_decode_part(part) for part in line["reward_parts"]),
        judgements=tuple(_decode_judgement(one) for one in line.get("judgements", ())),
        metrics={name: _number(value) for name, value in line["metrics"].items()},
        stop_reason=StopReason(line["stop_reason"]),
        outcome=Outcome(line["outcome"]),
        error=line["error"],
        placements=tuple(Placement(**placement) for placement in line["placements"]),
        seed=line["seed"],
        started_s=line["started_s"],
        seconds=line["seconds"],
        tool_seconds=line["tool_seconds"],
        continued=line.get("continued", 0),
        diverged=line.get("diverged"),
    )


def decode_fate(line: Mapping[str, Any]) -> Fate:
    return Fate(step=line["step"], dropped=line["dropped"], advantage=line["advantage"])


def decode_rows(shape: list[Any], columns: Mapping[str, NDArray[Any]]) -> tuple[Row, ...]:
    rows: list[Row] = []
    start = 0
    for row in shape:
        segments = []
        for origin, turn, length in row:
            span = slice(start, start + length)
            is_sampled = origin == Origin.SAMPLED
            segments.append(
                Segment(
                    origin=Origin(origin),
                    turn=turn,
                    ids=columns["ids"][span],
                    logprobs=columns["logprobs"][span] if is_sampled else None,
                    policy_versions=columns["policy_versions"][span] if is_sampled else None,
                )
            )
            start += length
        rows.append(tuple(segments))
    return tuple(rows)


def decode_turn(turn: Mapping[str, Any]) -> Turn:
    return Turn(
        text=turn["text"],
        calls=tuple(ToolCall(**call) for call in turn["calls"]),
        reasoning=turn["reasoning"],
        results=tuple(ToolResult(**result) for result in turn["results"]),
        reply=turn["reply"],
        reward=_number(turn["reward"]),
        is_truncated=turn["is_truncated"],
    )


def decode_message(message: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in message["calls"])
    return Message(message["role"], message["content"], calls, message["call_id"], message["name"])


def _decode_part(part: Mapping[str, Any]) -> RewardPart:
    return RewardPart(**{**part, "weight": _number(part["weight"])})


def _decode_judgement(judgement: Mapping[str, Any]) -> Judgement:
    parts = tuple(_decode_part(part) for part in judgement["parts"])
    return Judgement(**{**judgement, "answers": tuple(judgement["answers"]), "parts": parts})


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
