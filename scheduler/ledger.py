"""The books of open trajectories: what each event changes about them, and who is told of it.

Every trajectory has one entry from `Submitted` to its end, and what it holds is given back with it:
its slot, its place in a queue, its seat in its group. Events of an older generation, and of
trajectories that have ended, change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.decisions import Cut, Decision, Requeue, RequeueReason
from scheduler.events import (
    Failed,
    Finished,
    PlaceRejected,
    Progress,
    Role,
    Submitted,
    ToolReturned,
    ToolStarted,
    TrajectoryEvent,
    TurnFinished,
    TurnReady,
)
from scheduler.fleet import Fleet, Key
from scheduler.placing import Placing
from scheduler.policies import Observer
from scheduler.trajectories import Group, Trajectory, demands_of
from scheduler.views import Demand, Phase, TrajectoryView

AttemptEvent = (
    TurnReady | PlaceRejected | Progress | TurnFinished | ToolReturned | Finished | Failed
)
"""Of a trajectory that is known, and answered by no decision of its own."""


class Ledger:
    """See the module docstring."""

    def __init__(
        self, fleet: Fleet, placing: Placing, observers: Mapping[Role, tuple[Observer, ...]]
    ) -> None:
        self._fleet = fleet
        self._placing = placing
        self._observers = observers
        self._trajectories: dict[Key, Trajectory] = {}
        self._groups: dict[tuple[str, Role, str], Group] = {}
        """By job, role and group id, while an attempt is open."""

    def current(self, event: TrajectoryEvent) -> Trajectory | None:
        """The open trajectory that an event is about; None when the event is late."""
        trajectory = self._trajectories.get((event.job, event.trajectory_id))
        is_late = trajectory is None or event.generation < trajectory.generation
        return None if is_late else trajectory

    def view_of(self, key: Key) -> TrajectoryView:
        return self._trajectories[key].view()

    def demands(self) -> dict[tuple[str, Role], Demand]:
        """Open attempts by job and role."""
        return demands_of(self._trajectories.values())

    # ----------------------------------------------------------------------------------- events

    def submit(self, event: Submitted) -> None:
        key = (event.job, event.trajectory_id)
        known = self._trajectories.get(key)
        if known is not None:
            if event.generation <= known.generation:
                return
            self._end(known, is_complete=False)
        group = self._groups.setdefault((event.job, event.role, event.group_id), Group())
        trajectory = self._trajectories[key] = Trajectory.from_submitted(event, group)
        group.open[event.trajectory_id] = trajectory

    def update(self, event: AttemptEvent) -> None:
        trajectory = self.current(event)
        if trajectory is None:
            return
        match event:
            case TurnReady():
                self._turn_ready(trajectory, event)
            case PlaceRejected():
                self._place_rejected(trajectory, event)
            case Progress():
                trajectory.progressed(event)
            case TurnFinished():
                assert trajectory.phase in (Phase.DECODING, Phase.LOST), "no turn was running"
                self._fleet.free(trajectory.key)
                trajectory.turn_finished(event)
                for observer in self._observers_of(trajectory):
                    observer.turn_finished(trajectory.view())
            case ToolReturned():
                trajectory.tool_returned(event)
            case Finished():
                self._end(trajectory, is_complete=True)
                self._tell_siblings(trajectory, event.tokens)
            case Failed():
                self._end(trajectory, is_complete=False)

    def tool_started(self, event: ToolStarted) -> list[Decision]:
        trajectory = self.current(event)
        return [] if trajectory is None else self._placing.prewarm(event.t, trajectory)

    # -------------------------------------------------------------------------------- decisions

    def requeue(self, t: float, key: Key, reason: RequeueReason) -> Requeue:
        """A turn has lost its slot; its runner is to ask again."""
        trajectory = self._trajectories[key]
        trajectory.lost_worker()
        job, trajectory_id = key
        return Requeue(
            t=t,
            job=job,
            trajectory_id=trajectory_id,
            generation=trajectory.generation,
            turn=trajectory.turn,
            reason=reason,
        )

    def cut(self, t: float, name: str) -> list[Decision]:
        """Give up all attempts of a job that are rolled out to be trained on."""
        return [
            Cut(t=t, job=name, trajectory_id=trajectory_id, generation=trajectory.generation)
            for (job, trajectory_id), trajectory in self._trajectories.items()
            if job == name
            and not trajectory.submitted.is_eval
            and trajectory.submitted.role is Role.ROLLOUT
        ]

    # -------------------------------------------------------------------------------- the books

    def _turn_ready(self, trajectory: Trajectory, event: TurnReady) -> None:
        is_new = event.generation > trajectory.generation
        assert is_new or trajectory.phase is Phase.RESTING, (
            f"{event.trajectory_id} asks for turn {event.turn} while {trajectory.phase}, "
            f"again with generation {event.generation}"
        )
        self._fleet.free(trajectory.key)
        trajectory.turn_ready(event)
        for observer in self._observers_of(trajectory):
            observer.turn_ready(trajectory.view())
        self._placing.enqueue(trajectory)

    def _place_rejected(self, trajectory: Trajectory, event: PlaceRejected) -> None:
        self._fleet.rejected(event.t, event.worker_id, event.worker_generation)
        if trajectory.phase in (Phase.DECODING, Phase.LOST) and trajectory.turn == event.turn:
            self._fleet.free(trajectory.key)
            trajectory.waits_again()
            self._placing.enqueue(trajectory)

    def _observers_of(self, trajectory: Trajectory) -> tuple[Observer, ...]:
        return self._observers[trajectory.submitted.role]

    def _end(self, trajectory: Trajectory, *, is_complete: bool) -> None:
        self._fleet.free(trajectory.key)
        self._placing.ended(trajectory)
        del self._trajectories[trajectory.key]
        group = trajectory.group
        del group.open[trajectory.submitted.trajectory_id]
        if not group.open:
            submitted = trajectory.submitted
            del self._groups[submitted.job, submitted.role, submitted.group_id]
        for observer in self._observers_of(trajectory):
            observer.ended(trajectory.view(), is_complete=is_complete)

    def _tell_siblings(self, ended: Trajectory, tokens: int) -> None:
        """A finished attempt says something of its group: those that wait get their place anew."""
        ended.group.finished(tokens)
        for sibling in ended.group.open.values():
            if sibling.phase is Phase.WAITING:
                self._placing.enqueue(sibling)
