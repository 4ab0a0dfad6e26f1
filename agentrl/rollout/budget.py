"""The limits of one attempt, and how many tokens the next turn may sample.

Three limits on tokens with three names: of a turn, of all turns together, and of the context,
which holds prompt and tool text too. They are spent inside the loop; nothing left is a finished
trajectory with its own `StopReason`, never an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agentrl.config.sections import RolloutSection
from agentrl.types import StopReason


class Budget(NamedTuple):
    tokens: int
    """May be zero or less: then there is no next turn."""
    reason: StopReason
    """Why a trajectory ends that has spent them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    max_turns: int | None = None
    """None: the environment's own."""
    max_turn_tokens: int = 256
    max_trajectory_tokens: int = 2048
    context_tokens: int = 4096
    trajectory_timeout_s: float = 300.0
    tool_timeout_s: float = 60.0

    @classmethod
    def of(cls, section: RolloutSection) -> RolloutLimits:
        return cls(
            max_turns=section.max_turns,
            max_turn_tokens=section.max_turn_tokens,
            max_trajectory_tokens=section.max_trajectory_tokens,
            context_tokens=section.context_tokens,
            trajectory_timeout_s=section.trajectory_timeout_s,
            tool_timeout_s=section.tool_timeout_s,
        )

    def turn_budget(self, *, context: int, sampled: int, in_turn: int = 0) -> Budget:
        """Tokens left for a turn that has sampled `in_turn` of the trajectory's `sampled`."""
        return min(
            Budget(self.max_turn_tokens - in_turn, StopReason.MAX_TOKENS),
            Budget(self.max_trajectory_tokens - sampled, StopReason.MAX_TOKENS),
            Budget(self.context_tokens - context, StopReason.CONTEXT_FULL),
            key=lambda budget: budget.tokens,
        )

    def has_room(self, *, context: int, new: int) -> bool:
        """Whether at least one token can be sampled after `new` more ids of text."""
        return context + new < self.context_tokens
