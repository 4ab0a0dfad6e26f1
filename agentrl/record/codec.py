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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of a trajectory after it ended."""

    step: int
    """The optimizer step it belongs to: trained in it, dropped from it, or evaluated at it."""
    dropped: str | None = None
    """Why it was not trained on; None when it was, and for evaluation."""
    advantage: float | None = None


# ---------------------------------------------------------------------------- to the record


def encode(trajectory: Trajectory, fate: Fate) -> dict[str, Json]:
    """The line of a trajectory, as a mapping."""
    versions = sampled_versions(trajectory)
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
        "reward_parts": [_encode_part(part) for part in trajectory.reward_parts],
        "metrics": dict(trajectory.metrics),
        "stop_reason": trajectory.stop_reason.value,
        "outcome": trajectory.outcome.value,
        "error": trajectory.error,
        "policy_versions": versions,
        "num_tokens": trajectory.num_tokens,
        "num_sampled_tokens": trajectory.num_sampled_tokens,
        "seed": trajectory.seed,
        "started_s": trajectory.started_s,
        "seconds": trajectory.seconds,
        "tool_seconds": trajectory.tool_seconds,
        "messages": [_encode_message(message) for message in trajectory.messages],
        "turns": [_encode_turn(turn) for turn in trajectory.turns],
        "placements": [[p.turn, p.worker_id, p.bucket] for p in trajectory.placements],
        "rows": [[[s.origin.value, s.turn, len(s)] for s in row] for row in trajectory.rows],
    }


def sampled_versions(trajectory: Trajectory) -> tuple[int, int] | None:
    """The oldest and newest weights that sampled a token of it."""
    runs = [s.policy_versions for row in trajectory.rows for s in row if len(s)]
    sampled = [versions for versions in runs if versions is not None]
    if not sampled:
        return None
    return min(int(v.min()) for v in sampled), max(int(v.max()) for v in sampled)


def token_columns(trajectory: Trajectory) -> NDArray[np.void]:
    """All tokens of a trajectory, in the order of its line's `rows`."""
    tokens = np.zeros(trajectory.num_tokens, dtype=TOKEN)
    tokens["policy_versions"] = -1
    start = 0
    for segment in (segment for row in trajectory.rows for segment in row):
        run = tokens[start : start + len(segment)]
        run["ids"] = segment.ids
        if segment.logprobs is not None and segment.policy_versions is not None:
            run["logprobs"] = segment.logprobs
            run["policy_versions"] = segment.policy_versions
        start += len(segment)
    return tokens


def _encode_turn(turn: Turn) -> dict[str, Json]:
    return {
        "text": turn.text,
        "reasoning": turn.reasoning,
        "calls": [_encode_call(call) for call in turn.calls],
        "results": [_encode_result(result) for result in turn.results],
        "reply": turn.reply,
        "reward": turn.reward,
        "is_truncated": turn.is_truncated,
    }


def _encode_call(call: ToolCall) -> dict[str, Json]:
    return {
        "name": call.name,
        "arguments": dict(call.arguments),
        "id": call.id,
        "error": call.error,
    }


def _encode_result(result: ToolResult) -> dict[str, Json]:
    return {
        "call_id": result.call_id,
        "name": result.name,
        "text": result.text,
        "status": result.status,
        "seconds": result.seconds,
    }


def _encode_message(message: Message) -> dict[str, Json]:
    return {
        "role": message.role,
        "content": message.content,
        "calls": [_encode_call(call) for call in message.calls],
        "call_id": message.call_id,
        "name": message.name,
    }


def _encode_part(part: RewardPart) -> dict[str, Json]:
    return {
        "name": part.name,
        "value": part.value,
        "weight": part.weight,
        "rationale": part.rationale,
    }


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
        messages=tuple(_decode_message(message) for message in line["messages"]),
        reward=line["reward"],
        reward_parts=tuple(_decode_part(part) for part in line["reward_parts"]),
        metrics={name: _number(value) for name, value in line["metrics"].items()},
        stop_reason=StopReason(line["stop_reason"]),
        outcome=Outcome(line["outcome"]),
        error=line["error"],
        placements=tuple(
            Placement(turn=turn, worker_id=worker, bucket=bucket)
            for turn, worker, bucket in line["placements"]
        ),
        seed=line["seed"],
        started_s=line["started_s"],
        seconds=line["seconds"],
        tool_seconds=line["tool_seconds"],
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


def _decode_message(message: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in message["calls"])
    return Message(message["role"], message["content"], calls, message["call_id"], message["name"])


def _decode_part(part: Mapping[str, Any]) -> RewardPart:
    return RewardPart(**{**part, "weight": _number(part["weight"])})


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
