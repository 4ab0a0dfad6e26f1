"""One attempt to be made: what a runner needs to know, and nothing of where it will run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentrl.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Sibling `sibling` of a group, for the `attempt`-th time."""

    trajectory_id: str
    """Unique for each attempt, retries included."""
    task: Task
    group_id: str
    sibling: int
    attempt: int = 0
    split: str = "train"
    epoch: int = 0
    """How often the run had attempted all tasks before."""

    def again(self) -> Attempt:
        """The next try of the same sibling."""
        number = self.attempt + 1
        return replace(
            self, attempt=number, trajectory_id=f"{self.group_id}-{self.sibling}.{number}"
        )
