"""What a coordinator knows: its scheduler, who told what, and what is still to be delivered.

All of it follows from the log up to some line. So that a long launch need not be replayed whole when
its coordinator dies, it can be frozen between two lines, and gone on from there.
"""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from agentrl.runtime.mail import Mailbox
from scheduler.core import Scheduler
from scheduler.decisions import Cut, Decision, Place, Prewarm, Requeue
from scheduler.events import Failed, Finished, RunStarted, Submitted
from scheduler.replay import LogEntry


@dataclass(slots=True, kw_only=True)
class CoordinatorState:
    """After the line that ends at `log_bytes` of the log."""

    scheduler: Scheduler
    log_bytes: int
    t: float = 0.0
    """Of the newest event."""
    seq: int = 0
    mail: defaultdict[str, Mailbox] = field(default_factory=lambda: defaultdict(Mailbox))
    """By the name of the process that is to have it."""
    taken_in: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Number of the last event of each sender."""
    lost: set[str] = field(default_factory=set)
    """Runners that are gone."""
    told: Counter[str] = field(default_factory=Counter)
    """Events by kind."""
    decided: Counter[str] = field(default_factory=Counter)
    _owner_of_trajectory: dict[str, str] = field(default_factory=dict)
    _owner_of_job: dict[str, str] = field(default_factory=dict)

    def note(self, entry: LogEntry) -> None:
        """Whose is what, how far everybody is, and what is to be delivered. The scheduler has the
        event already."""
        event = entry.event
        self.t, self.seq = event.t, event.seq
        self.told[type(event).__name__] += 1
        self.decided.update(type(decision).__name__ for decision in entry.decisions)
        match event:
            case RunStarted():
                self._owner_of_job[event.job] = entry.sender
            case Submitted():
                self._owner_of_trajectory[event.trajectory_id] = entry.sender
        for decision in entry.decisions:
            self.mail[self._recipient(decision)].put(decision)
        if isinstance(event, Finished | Failed):
            self._owner_of_trajectory.pop(event.trajectory_id, None)
        if entry.number:
            self.taken_in[entry.sender] = entry.number

    def owned_by(self, sender: str) -> list[str]:
        """Its trajectories that have not ended."""
        return [key for key, owner in self._owner_of_trajectory.items() if owner == sender]

    def frozen(self) -> bytes:
        """All of it, for `thawed`."""
        return pickle.dumps(self)

    @staticmethod
    def thawed(frozen: bytes) -> CoordinatorState:
        state = pickle.loads(frozen)
        assert isinstance(state, CoordinatorState)
        return state

    def _recipient(self, decision: Decision) -> str:
        match decision:
            case Place() | Requeue() | Prewarm() | Cut():
                return self._owner_of_trajectory[decision.trajectory_id]
            case _:
                return self._owner_of_job[decision.job]
