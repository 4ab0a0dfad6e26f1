"""What goes wrong in a simulated cluster, drawn ahead of time from a seed.

A worker is lost, with or without notice, and comes back under a higher generation; a box fails and
its attempt is lost; a message arrives late, after its trajectory has moved on; a placement takes a
while to reach its worker, and may find it gone, or not reach it at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultModel:
    """Rates of trouble; the default is none."""

    worker_mean_life_s: float | None = None
    """Mean time of exponential lives; None: workers live for ever."""
    worker_down_s: float = 30.0
    """Mean time until a lost worker serves again."""
    detection_s: float = 0.0
    """Mean time until the scheduler hears of a loss; placements there are rejected meanwhile."""
    notice_s: float = 0.0
    """How long before its loss a worker is told of; 0: never."""
    noticed: float = 1.0
    """Share of losses that are told of."""
    stage_failure: float = 0.0
    """Chance that a stage of a handoff is reported as failed ..."""
    stage_hang: float = 0.0
    """... and that it is never reported."""
    box_failure: float = 0.0
    """Chance per tool call that the box, and with it the attempt, is lost."""
    late_message: float = 0.0
    """Chance per event of an attempt that an older one arrives again after it."""
    dispatch_s: float = 0.0
    """Mean delay between a placement and its arrival at the worker."""
    unreached: float = 0.0
    """Chance that a placement is rejected although its worker is there. Needs ticks: only with them
    is the worker tried again."""


class Faults:
    """Draws from a model with its own generator, so that workloads stay the same."""

    def __init__(self, model: FaultModel, rng: Generator) -> None:
        self._model = model
        self._rng = rng

    def life_s(self) -> float | None:
        mean = self._model.worker_mean_life_s
        return None if mean is None else float(self._rng.exponential(mean))

    def down_s(self) -> float:
        return self._delay(self._model.worker_down_s)

    def detection_s(self) -> float:
        return self._delay(self._model.detection_s)

    def dispatch_s(self) -> float:
        return self._delay(self._model.dispatch_s)

    def is_unreached(self) -> bool:
        return self._happens(self._model.unreached)

    def notice_s(self) -> float:
        """0: a sudden loss."""
        return (
            self._model.notice_s
            if self._happens(self._model.noticed, self._model.notice_s)
            else 0.0
        )

    def stage_fails(self) -> bool:
        return self._happens(self._model.stage_failure)

    def stage_hangs(self) -> bool:
        return self._happens(self._model.stage_hang)

    def _happens(self, chance: float, is_possible: float = 1.0) -> bool:
        """Draws only where something can happen, so that other draws stay the same."""
        return chance * is_possible > 0 and self._rng.random() < chance

    def box_fails(self) -> bool:
        return self._model.box_failure > 0 and self._rng.random() < self._model.box_failure

    def message_is_late(self) -> bool:
        return self._model.late_message > 0 and self._rng.random() < self._model.late_message

    def _delay(self, mean: float) -> float:
        return 0.0 if mean == 0 else float(self._rng.exponential(mean))
