"""Learning rates: a linear rise, a plateau, and a fall to a share of the peak.

Counted in updates, from 1, so that the last update of the run has exactly the final rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agentrl.config.sections import OptimizerSection, WarmupSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    peak: float
    rise_updates: int
    fall_after: int
    """The last update of the plateau."""
    updates: int
    """Where the fall ends; later updates keep the final rate."""
    final_fraction: float
    shape: Literal["linear", "cosine"]

    def rate(self, update: int) -> float:
        if update < self.rise_updates:
            return self.peak * update / self.rise_updates
        if update <= self.fall_after:
            return self.peak
        if update >= self.updates:
            return self.peak * self.final_fraction
        fallen = (update - self.fall_after) / (self.updates - self.fall_after)
        if self.shape == "cosine":
            fallen = (1 - math.cos(math.pi * fallen)) / 2
        return self.peak * (1 - (1 - self.final_fraction) * fallen)


def training_schedule(section: OptimizerSection, *, steps: int) -> Schedule:
    """Falls from the end of the rise to the last step of the run."""
    is_constant = section.schedule == "constant"
    return Schedule(
        peak=section.learning_rate,
        rise_updates=section.warmup_steps,
        fall_after=section.warmup_steps,
        updates=steps,
        final_fraction=1.0 if is_constant else section.final_fraction,
        shape="cosine" if section.schedule == "cosine" else "linear",
    )


def warmup_schedule(section: WarmupSection) -> Schedule:
    """Falls over the last `decay_fraction` of the steps."""
    return Schedule(
        peak=section.learning_rate,
        rise_updates=section.warmup_steps,
        fall_after=section.steps - round(section.steps * section.decay_fraction),
        updates=section.steps,
        final_fraction=section.final_fraction,
        shape="linear",
    )
