"""Views for tests of policies and estimators."""

from __future__ import annotations

from typing import Any

from scheduler.events import Role, ToolStatus
from scheduler.views import Phase, ToolFact, TrajectoryView, WorkerView


def worker(worker_id: str, *, running: int = 0, slots: int = 10, **fields: Any) -> WorkerView:
    defaults: dict[str, Any] = {
        "generation": 0,
        "job": "main",
        "role": Role.ROLLOUT,
        "bucket": "default",
        "tp": 1,
        "kv_tokens": None,
        "policy_version": 0,
        "running_tokens": 0,
    }
    return WorkerView(
        worker_id=worker_id, num_running=running, max_running=slots, **{**defaults, **fields}
    )


def trajectory(trajectory_id: str = "t0", **fields: Any) -> TrajectoryView:
    defaults: dict[str, Any] = {
        "job": "main",
        "generation": 0,
        "group_id": "g0",
        "task_family": "",
        "is_eval": False,
        "role": Role.ROLLOUT,
        "prompt_tokens": 0,
        "submitted_t": 0.0,
        "phase": Phase.WAITING,
        "turn": 0,
        "tokens": 0,
        "turn_tokens": (),
        "tools": (),
        "context_tokens": 0,
        "ready_t": 1.0,
        "home_id": None,
        "home_generation": 0,
        "siblings_finished": (),
        "last_move_turn": -1,
    }
    return TrajectoryView(trajectory_id=trajectory_id, **{**defaults, **fields})


def tool(status: ToolStatus = ToolStatus.OK, call_hash: str = "", turn: int = 0) -> ToolFact:
    return ToolFact(
        turn=turn, tool="shell", status=status, size_tokens=50, seconds=0.5, call_hash=call_hash
    )
