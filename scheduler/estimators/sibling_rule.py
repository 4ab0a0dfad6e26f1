"""Seer's rule (arXiv 2511.14617): a group is as long as its longest finished member, or as long as can be.

No learning across groups: before one member has finished, the group is taken for the longest, and the
longest groups go first.
"""

from __future__ import annotations

from scheduler.residual import Residual
from scheduler.views import TrajectoryView


class SiblingRule:
    def __init__(self, *, max_tokens: int) -> None:
        """`max_tokens`: what an attempt may sample at most."""
        self._max_tokens = max_tokens

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        """The view holds all that the rule needs."""

    def placed(self, trajectory: TrajectoryView) -> None:
        """The view holds all that the rule needs."""

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        """The view holds all that the rule needs."""

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        """The view holds all that the rule needs."""

    def predict(self, trajectory: TrajectoryView) -> Residual:
        total = max(trajectory.siblings_finished, default=self._max_tokens)
        return Residual.certain(max(1, total - trajectory.tokens))
