"""Two trees that look at different facts, pooled: our default.

What an attempt's own tools say and what its siblings' lengths say are nearly independent evidence, so
their odds multiply: for each bin, the odds of ending there are the odds by history times the odds
by siblings, over the odds without either. One tree over both would see each pair of contexts too
seldom.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.estimators.context_tree import ContextTree, siblings, tool_history
from scheduler.residual import Residual
from scheduler.views import TrajectoryView


class PooledTrees:
    def __init__(
        self,
        *,
        half_life: float = 2000.0,
        strength: float = 120.0,
        learns_from_running: bool = True,
        backs_off: bool = True,
    ) -> None:
        self._history, self._siblings = (
            ContextTree(
                chain,
                half_life=half_life,
                strength=strength,
                learns_from_running=learns_from_running,
                backs_off=backs_off,
            )
            for chain in (tool_history, siblings)
        )

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        self._history.turn_ready(trajectory)
        self._siblings.turn_ready(trajectory)

    def placed(self, trajectory: TrajectoryView) -> None:
        """Placement tells nothing of length."""

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        self._history.turn_finished(trajectory)
        self._siblings.turn_finished(trajectory)

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        self._history.ended(trajectory, is_complete=is_complete)
        self._siblings.ended(trajectory, is_complete=is_complete)

    def state(self) -> dict[str, Any]:
        """What has been learned, as plain data for a checkpoint."""
        return {"history": self._history.state(), "siblings": self._siblings.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self._history.restore(state["history"])
        self._siblings.restore(state["siblings"])

    def predict(self, trajectory: TrajectoryView) -> Residual:
        by_history = self._history.hazards(trajectory)
        if not trajectory.siblings_finished:
            return Residual.from_hazards(by_history)
        by_siblings = self._siblings.hazards(trajectory)
        base = self._history.base_hazards()
        return Residual.from_hazards(
            [
                _pool(one, other, neither)
                for one, other, neither in zip(by_history, by_siblings, base, strict=True)
            ]
        )


_SURE = 0.999
"""No single forecast is believed further than this."""


def _pool(one: float, other: float, neither: float) -> float:
    """Independent evidence: the odds by one, times the odds by the other over those by neither."""
    one = min(max(one, 1.0 - _SURE), _SURE)
    other = min(max(other, 1.0 - _SURE), _SURE)
    neither = min(max(neither, 1.0 - _SURE), _SURE)
    ends = one * other * (1.0 - neither)
    goes_on = (1.0 - one) * (1.0 - other) * neither
    return ends / (ends + goes_on)
