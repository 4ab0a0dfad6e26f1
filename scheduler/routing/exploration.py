"""Random routing now and then, with its probability in the log.

A rule that sends long attempts to wide workers makes wide workers look slow: what is seen where depends
on the rule. A share `epsilon` of placements goes to any worker with a free slot, each as likely, and
every `Place` carries the probability with which its worker was chosen. Weighting by its inverse
(scheduler.counterfactual) then answers what would have come of another routing.

Randomness is an argument: with a generator of the same seed, a log replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from scheduler.views import WorkerView


class Exploration:
    def __init__(self, epsilon: float, rng: Random) -> None:
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"the share of random placements is {epsilon}, wanted 0 to 1")
        self._epsilon = epsilon
        self._rng = rng

    def deviate(
        self, chosen: WorkerView, workers: Sequence[WorkerView]
    ) -> tuple[WorkerView, float]:
        """The worker to take instead of the one a rule has chosen, and how likely that was."""
        free = [worker for worker in workers if worker.has_slot]
        by_chance = self._epsilon / len(free)
        taken = chosen
        if self._rng.random() < self._epsilon:
            taken = free[self._rng.randrange(len(free))]
        return taken, by_chance + (1.0 - self._epsilon) * (taken is chosen)
