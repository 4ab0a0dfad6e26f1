"""Forecasts that know the truth, for simulations only: yardsticks and noise sweeps.

They are handed a function that knows; nothing in the live runtime can give them one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp

import numpy as np

from scheduler.residual import Residual
from scheduler.views import TrajectoryView

TotalTokens = Callable[[TrajectoryView], int]
"""All tokens an attempt will ever sample."""


class Oracle:
    """Knows how much is left, to within a log-normal error of a fixed size per attempt.

    `log_noise` 0 is the truth. The error is drawn from (seed, trajectory id), so it does not depend
    on when or how often it is asked.
    """

    def __init__(self, truth: TotalTokens, *, log_noise: float = 0.0, seed: int = 0) -> None:
        self._truth = truth
        self._log_noise = log_noise
        self._seed = seed

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        """There is nothing to learn."""

    def placed(self, trajectory: TrajectoryView) -> None:
        """There is nothing to learn."""

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        """There is nothing to learn."""

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        """There is nothing to learn."""

    def predict(self, trajectory: TrajectoryView) -> Residual:
        left = max(1, self._truth(trajectory) - trajectory.tokens)
        if self._log_noise == 0:
            return Residual.certain(left)
        name = trajectory.trajectory_id.encode()
        rng = np.random.default_rng((self._seed, int.from_bytes(name[-8:], "little")))
        return Residual.certain(left * exp(self._log_noise * float(rng.normal())))
