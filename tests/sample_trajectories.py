"""Trajectories and recorded runs for tests of whatever writes, reads or shows them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.record.writer import RunWriter
from agentrl.types import (
    Message,
    Origin,
    Outcome,
    Placement,
    RewardPart,
    Segment,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)

CONFIG_YAML = """\
seed: 7
env: {name: trail, options: {max_hops: 12}}
model: {from: scratch}
train: {steps: 4, groups_per_step: 2}
"""


def make_trajectory(
    group_id: str = "g000000", sibling: int = 0, *, num_turns: int = 2, **changes: Any
) -> Trajectory:
    """An attempt that reads files, one a turn."""
    segments = [_text(Origin.PROMPT, 0, 5)]
    turns = []
    for turn in range(num_turns):
        segments += [_sampled(turn, 3 + sibling), _text(Origin.TOOL, turn, 4)]
        call = ToolCall("shell", {"command": f"cat file{turn}"}, "0")
        result = ToolResult(call_id="0", name="shell", text=f"next{turn}", seconds=0.25)
        turns.append(Turn(text=f"look {turn}", calls=(call,), results=(result,)))
    return Trajectory(
        **{
            "trajectory_id": f"{group_id}-{sibling}",
            "task_id": "task-0",
            "group_id": group_id,
            "sibling": sibling,
            "rows": (tuple(segments),),
            "turns": tuple(turns),
            "messages": (Message("system", "Follow the trail."), Message("user", "file0")),
            "reward": float(sibling % 2),
            "reward_parts": (RewardPart(name="exact", value=float(sibling % 2)),),
            "metrics": {"hops": 2.0},
            "stop_reason": StopReason.DONE,
            "outcome": Outcome.FINISHED,
            "placements": (Placement(turn=0, worker_id="rollout-0", bucket="default"),),
            "seed": 11,
            "started_s": 1_700_000_000.0,
            "seconds": 1.5,
            "tool_seconds": 0.5,
            **changes,
        }
    )


def _text(origin: Origin, turn: int, length: int) -> Segment:
    return Segment(origin=origin, turn=turn, ids=np.arange(length, dtype=np.int32))


def _sampled(turn: int, length: int) -> Segment:
    return Segment(
        origin=Origin.SAMPLED,
        turn=turn,
        ids=np.arange(100, 100 + length, dtype=np.int32),
        logprobs=-np.arange(length, dtype=np.float32) / 8,
        policy_versions=np.full(length, turn + 1, dtype=np.int32),
    )


def record_run(path: Path, *, num_steps: int = 3, group_size: int = 4) -> Path:
    """A finished run of two groups a step and an evaluation after the last."""
    path.mkdir(parents=True)
    writer = RunWriter(path, CONFIG_YAML)
    for step in range(1, num_steps + 1):
        for group in range(2):
            group_id = f"g{2 * step + group:06d}"
            for sibling in range(group_size):
                trajectory = make_trajectory(group_id, sibling, task_id=f"task-{group}")
                writer.trajectory(trajectory, step=step, advantage=sibling % 2 - 0.5)
        columns = {"trainer_logprobs": np.linspace(-1, 0, trajectory.num_tokens, dtype=np.float32)}
        samples = [(trajectory.trajectory_id, trajectory.num_tokens)]
        writer.training(step, columns, samples=samples)
        writer.metrics(
            {
                "step": step,
                "reward": step / num_steps,
                "trajectories": 2 * group_size,
                "outcomes/finished": 2 * group_size,
                "seconds": 2.0,
            }
        )
    evaluated = make_trajectory("eval000003-00000", 0, split="eval")
    writer.trajectory(evaluated, step=num_steps)
    writer.metrics({"step": num_steps, "eval/reward": 0.75})
    writer.summary({"eval_reward": 0.75})
    writer.close()
    assert not writer.dropped
    assert not writer.failed
    return path


def comparable(value: Any) -> Any:
    """A value whose arrays can be compared with `==`."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: comparable(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return value
