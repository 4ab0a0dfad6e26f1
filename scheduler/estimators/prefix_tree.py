"""Libra's estimator, as its open code does it: exact histories of tool results, finished runs only.

The state of a tool result is (tool, size class, status); the key of an attempt is the whole sequence
of its states. One root per group and one for all groups; an attempt looks itself up under its
group's root when that exists, else under the common one. Kept as a baseline, weak points included:
running attempts teach nothing, one finished sibling hides the common root, and a long sequence is
seldom seen twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler.views import ToolFact, TrajectoryView

_SMALL_TOKENS = 1000
_LARGE_TOKENS = 12_000
_RECENT = 200
"""Samples behind the 90th percentile."""

_COMMON = "*"

_States = tuple[tuple[str, int, str], ...]
"""Tool, size class and status of each return, from the first on."""


@dataclass(frozen=True, slots=True)
class Expected:
    mean: float
    p90: float


@dataclass(slots=True)
class _Node:
    count: int = 0
    mean: float = 0.0
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, tokens: int) -> None:
        self.count += 1
        self.mean += (tokens - self.mean) / self.count
        self.recent.append(tokens)

    def expected(self) -> Expected:
        ranked = sorted(self.recent)
        return Expected(self.mean, ranked[min(len(ranked) - 1, int(0.9 * len(ranked)))])


def _state(fact: ToolFact) -> tuple[str, int, str]:
    size = (fact.size_tokens > _SMALL_TOKENS) + (fact.size_tokens > _LARGE_TOKENS)
    return fact.tool, size, fact.status.value


class PrefixTree:
    """An observer; `expected` answers for an attempt whose tools have returned."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, _States], _Node] = {}
        self._positions: dict[tuple[str, str], list[int]] = {}
        """Tokens sampled before each tool return, by open attempt."""

    def state(self) -> dict[str, Any]:
        """What has been learned of all prompts together; groups of their own do not come back."""
        return {
            "nodes": [
                [states, node.count, node.mean, list(node.recent)]
                for (root, states), node in self._nodes.items()
                if root == _COMMON
            ]
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        for states, count, mean, recent in state["nodes"]:
            node = self._node(_COMMON, tuple((tool, size, status) for tool, size, status in states))
            node.count, node.mean = count, mean
            node.recent.extend(recent)

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        """Nothing that the tool results do not say."""

    def placed(self, trajectory: TrajectoryView) -> None:
        """Placement tells nothing of length."""

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        key = (trajectory.job, trajectory.trajectory_id)
        self._positions.setdefault(key, []).append(trajectory.tokens)

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        positions = self._positions.pop((trajectory.job, trajectory.trajectory_id), [])
        if not is_complete:
            return
        states = tuple(_state(fact) for fact in trajectory.tools)
        for root in (trajectory.group_id, _COMMON):
            self._node(root, ()).add(trajectory.tokens)
            for i, position in enumerate(positions[: len(states)]):
                self._node(root, states[: i + 1]).add(trajectory.tokens - position)

    def expected(self, trajectory: TrajectoryView) -> Expected | None:
        """Statistics of the longest known beginning of its history; None before any tool."""
        if not trajectory.tools:
            return None
        states = tuple(_state(fact) for fact in trajectory.tools)
        root = trajectory.group_id if (trajectory.group_id, ()) in self._nodes else _COMMON
        for length in range(len(states), -1, -1):
            node = self._nodes.get((root, states[:length]))
            if node is not None:
                return node.expected()
        return None

    def _node(self, root: str, states: _States) -> _Node:
        return self._nodes.setdefault((root, states), _Node())
