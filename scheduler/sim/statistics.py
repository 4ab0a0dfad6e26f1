"""Paired comparisons: how much faster, and how sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Mean ratio of times, with a 95 % bootstrap interval over paired seeds."""

    mean: float
    low: float
    high: float


def speedup(baseline_seconds: Sequence[float], seconds: Sequence[float]) -> Ratio:
    """How many times faster than the baseline on the same seeds."""
    ratios = np.asarray(baseline_seconds) / np.asarray(seconds)
    draws = np.random.default_rng(0).integers(0, len(ratios), (_RESAMPLES, len(ratios)))
    low, high = np.quantile(ratios[draws].mean(axis=1), (0.025, 0.975))
    return Ratio(mean=float(ratios.mean()), low=float(low), high=float(high))
