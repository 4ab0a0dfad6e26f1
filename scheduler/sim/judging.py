"""What a generative reward model is asked in simulation: one request a finished attempt.

It reads the attempt and writes a judgement whose length is log-normal and grows with the attempt. How
much judging costs may swing over the run, as when rubrics or task mixes change.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import numpy as np

from scheduler.sim.workload import AttemptPlan, TurnPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeModel:
    tokens: float = 800.0
    """Median tokens of a judgement ..."""
    per_response_token: float = 0.0
    """... and how many more a sampled token of the attempt adds."""
    sigma: float = 0.5
    rubric_tokens: int = 600
    max_tokens: int = 16_384
    swing: float = 1.0
    """Judgements of every other `swing_groups` groups are this many times longer ..."""
    swing_groups: int = 0
    """... 0: never."""

    def request(self, plan: AttemptPlan, seed: int) -> AttemptPlan:
        """The judgement of an attempt: drawn for it alone, so it is the same in every run."""
        index = int(plan.group_id[1:])
        rng = np.random.default_rng((seed, index, plan.sibling, 11))
        median = self.tokens + self.per_response_token * plan.tokens
        if self.swing_groups and (index // self.swing_groups) % 2:
            median *= self.swing
        tokens = int(median * exp(self.sigma * float(rng.normal())))
        return AttemptPlan(
            group_id=plan.group_id,
            sibling=plan.sibling,
            task_family="judge",
            prompt_tokens=self.rubric_tokens + plan.context_tokens,
            start_seconds=0.0,
            turns=(TurnPlan(tokens=max(1, min(tokens, self.max_tokens)), tool=None),),
        )
