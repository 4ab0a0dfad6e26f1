"""The index of a run's trajectories: one short line each, enough for every table.

A row says what a trajectory is, how it ended and where its line and tokens lie, so that opening a
run reads no text at all. It is written after the line it points to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentrl.record.codec import Fate, sampled_versions
from agentrl.types import Outcome, StopReason, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow:
    """One trajectory, in short."""

    trajectory_id: str
    task_id: str
    group_id: str
    sibling: int
    attempt: int
    split: str
    step: int
    dropped: str | None
    advantage: float | None
    reward: float | None
    stop_reason: StopReason
    outcome: Outcome
    num_turns: int
    num_tokens: int
    num_sampled_tokens: int
    policy_versions: tuple[int, int] | None
    started_s: float
    seconds: float
    launch: int
    """Which launch of the run wrote it; a resumed run may do steps again."""
    chunk: int
    line_start: int
    line_bytes: int
    token_start: int
    """Offset into the chunk's token columns, in tokens; there are `num_tokens` of them."""

    @classmethod
    def of(
        cls,
        trajectory: Trajectory,
        fate: Fate,
        *,
        launch: int,
        chunk: int,
        line_start: int,
        line_bytes: int,
        token_start: int,
    ) -> IndexRow:
        return cls(
            trajectory_id=trajectory.trajectory_id,
            task_id=trajectory.task_id,
            group_id=trajectory.group_id,
            sibling=trajectory.sibling,
            attempt=trajectory.attempt,
            split=trajectory.split,
            step=fate.step,
            dropped=fate.dropped,
            advantage=fate.advantage,
            reward=trajectory.reward,
            stop_reason=trajectory.stop_reason,
            outcome=trajectory.outcome,
            num_turns=len(trajectory.turns),
            num_tokens=trajectory.num_tokens,
            num_sampled_tokens=trajectory.num_sampled_tokens,
            policy_versions=sampled_versions(trajectory),
            started_s=trajectory.started_s,
            seconds=trajectory.seconds,
            launch=launch,
            chunk=chunk,
            line_start=line_start,
            line_bytes=line_bytes,
            token_start=token_start,
        )

    @classmethod
    def parse(cls, line: dict[str, Any]) -> IndexRow:
        versions = line["policy_versions"]
        line["policy_versions"] = None if versions is None else tuple(versions)
        line["stop_reason"] = StopReason(line["stop_reason"])
        line["outcome"] = Outcome(line["outcome"])
        return cls(**line)
