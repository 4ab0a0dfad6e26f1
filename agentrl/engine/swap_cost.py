"""What new weights cost the turns that an engine serves, counted where it happens.

An engine without turns has nobody to hold up: a swap between two steps of a synchronous run costs
nothing here. Called from the thread that decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from agentrl.engine.turn import ServedTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCost:
    """Of the swaps of one engine since it was last asked."""

    swaps: int = 0
    stopped_s: float = 0.0
    """No turn was decoded, though there were turns."""
    stalled_turn_s: float = 0.0
    """Turn by turn, the seconds that a swap held it up, added up."""
    recomputed_tokens: int = 0
    """Whose keys and values running turns had, and had to compute anew."""
    drained_turns: int = 0
    """Had to end before the new weights came in."""
    held_turns: int = 0
    """Waited for the end of those."""


class SwapMeter:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cost = SwapCost()
        self._stopped_since_s: float | None = None
        self._dry_since_s: float | None = None
        """While turns are held: since when none runs any more."""

    def take(self) -> SwapCost:
        taken, self._cost = self._cost, SwapCost()
        return taken

    # ------------------------------------------------------------------ a swap under running turns

    def begins(self, running: Iterable[ServedTurn]) -> None:
        """The weights are being written."""
        self._add(swaps=1)
        for turn in running:
            self._stall(turn)
            if self._stopped_since_s is None:
                self._stopped_since_s = turn.stalled_since_s

    def kept(self, running: Iterable[ServedTurn]) -> None:
        """Turns go on as they are."""
        for turn in running:
            self.goes_on(turn)

    def dropped(self, running: Iterable[ServedTurn]) -> None:
        """Turns go on when their contexts are there again; called before they are gone."""
        self._add(recomputed_tokens=sum(turn.filled for turn in running))

    def goes_on(self, turn: ServedTurn) -> None:
        """It decodes, or has ended."""
        if turn.stalled_since_s is None:
            return
        now = self._clock()
        self._add(stalled_turn_s=now - turn.stalled_since_s)
        turn.stalled_since_s = None
        if self._stopped_since_s is not None:
            self._add(stopped_s=now - self._stopped_since_s)
            self._stopped_since_s = None

    # ------------------------------------------------------------------ a swap after running turns

    def holds(self, running: list[ServedTurn], waiting: Iterable[ServedTurn]) -> None:
        """Those that run are to end, and no other begins."""
        self._add(drained_turns=len(running))
        for turn in waiting:
            self._stall(turn)
        if not running:
            self.ran_dry()

    def waits(self, turn: ServedTurn) -> None:
        """It came while others are held."""
        self._stall(turn)

    def ran_dry(self) -> None:
        """The last of those that ran has ended."""
        self._dry_since_s = self._clock()

    def admits(self, waiting: Iterable[ServedTurn]) -> None:
        """Those that were held may begin."""
        dry_s, self._dry_since_s = self._dry_since_s, None
        held = [turn for turn in waiting if turn.stalled_since_s is not None]
        if held and dry_s is not None:
            first_s = min(turn.stalled_since_s or 0.0 for turn in held)
            self._stopped_since_s = max(dry_s, first_s)
        self._add(held_turns=len(held))
        for turn in held:
            self.goes_on(turn)

    # ------------------------------------------------------------------ parts

    def _stall(self, turn: ServedTurn) -> None:
        if turn.stalled_since_s is None:
            turn.stalled_since_s = self._clock()

    def _add(self, **amounts: float) -> None:
        now = {name: getattr(self._cost, name) + amount for name, amount in amounts.items()}
        self._cost = replace(self._cost, **now)
