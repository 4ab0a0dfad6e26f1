"""Facts of an attempt that no placement can change, as small keys to count by."""

from __future__ import annotations

from scheduler.events import ToolStatus
from scheduler.views import TrajectoryView


def failure_streak(trajectory: TrajectoryView) -> int:
    """Tool calls that failed one after another, up to now."""
    streak = 0
    for fact in reversed(trajectory.tools):
        if fact.status is ToolStatus.OK:
            break
        streak += 1
    return streak


def is_repeating(trajectory: TrajectoryView) -> bool:
    """The last two calls were equal."""
    tools = trajectory.tools
    return len(tools) >= 2 and tools[-1].call_hash == tools[-2].call_hash != ""


def last_status(trajectory: TrajectoryView) -> str:
    return trajectory.tools[-1].status.value if trajectory.tools else "none"


def size_class(trajectory: TrajectoryView) -> int:
    """Order of magnitude of the last result, in powers of four tokens."""
    return trajectory.tools[-1].size_tokens.bit_length() // 2 if trajectory.tools else -1


def tokens_class(tokens: int) -> int:
    """Powers of two."""
    return int(tokens).bit_length()
