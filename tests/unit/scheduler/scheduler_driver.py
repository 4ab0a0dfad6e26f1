"""A hand-driven clock and event stamp for tests of the scheduler."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeVar

from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.events import Event, Role, Submitted, TurnFinished, TurnReady, WorkerReady
from scheduler.policies import AdmissionPolicy, Observer, PrewarmPolicy, RoutePolicy, ShiftPolicy
from scheduler.replay import LogEntry
from scheduler.routing.exploration import Exploration
from scheduler.routing.least_load import LeastLoad
from scheduler.views import TrajectoryView

AnyEvent = TypeVar("AnyEvent", bound=Event)


class Views(defaultdict[str, list[TrajectoryView]]):
    """What an observer is shown of each trajectory, one after the other."""

    def __init__(self) -> None:
        super().__init__(list)

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        self[trajectory.trajectory_id].append(trajectory)

    placed = turn_finished = turn_ready

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        self.turn_ready(trajectory)


class Driver:
    """Stamps events, feeds them to a scheduler and keeps the log."""

    def __init__(
        self,
        *,
        routing: RoutePolicy | None = None,
        admission: AdmissionPolicy | None = None,
        observers: tuple[Observer, ...] = (),
        shifting: ShiftPolicy | None = None,
        training_sizes: tuple[int, ...] = (),
        exploration: Exploration | None = None,
        prewarming: PrewarmPolicy | None = None,
    ) -> None:
        self.views = Views()
        self.scheduler = Scheduler(
            observers=(*observers, self.views),
            exploration=exploration,
            prewarming=prewarming,
            shifting=shifting,
            training_sizes=training_sizes,
            routing=routing or LeastLoad(),
            admission=admission
            or CapacityAdmission(groups_per_step=2, num_steps=3, max_running_groups=100),
        )
        self.log: list[LogEntry] = []

    @property
    def num_running(self) -> int:
        """Turns that take a slot of a worker in service."""
        return sum(worker.num_running for worker in self.scheduler.members())

    @property
    def num_decoding(self) -> int:
        """Open attempts whose turn is placed, on workers that leave service too."""
        return sum(demand.decoding for demand in self.scheduler.demands().values())

    def send(self, kind: type[AnyEvent], /, **fields: Any) -> Any:
        seq = len(self.log)
        event = kind(t=seq / 8, seq=seq, **fields)
        decisions = self.scheduler.on(event)
        self.log.append(LogEntry(event=event, decisions=decisions))
        return decisions

    def worker(
        self,
        worker_id: str = "w0",
        generation: int = 0,
        slots: int = 1,
        role: Role = Role.ROLLOUT,
    ) -> Any:
        return self.send(
            WorkerReady,
            worker_id=worker_id,
            generation=generation,
            role=role,
            max_running=slots,
        )

    def submit(self, trajectory_id: str, generation: int = 0, **fields: Any) -> Any:
        fields = {"group_id": "g0", **fields}
        return self.send(Submitted, trajectory_id=trajectory_id, generation=generation, **fields)

    def ready(self, trajectory_id: str, turn: int = 0, generation: int = 0) -> Any:
        return self.send(
            TurnReady,
            trajectory_id=trajectory_id,
            generation=generation,
            turn=turn,
            context_tokens=100,
        )

    def finish_turn(self, trajectory_id: str, turn: int = 0, generation: int = 0) -> Any:
        return self.send(
            TurnFinished,
            trajectory_id=trajectory_id,
            generation=generation,
            turn=turn,
            tokens=10,
            context_tokens=110,
        )
