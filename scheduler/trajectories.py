"""What is known of one attempt, updated by its events, and the view that policies get of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler.events import Progress, Role, Submitted, ToolReturned, TurnFinished, TurnReady
from scheduler.fleet import Key
from scheduler.views import Demand, Phase, ToolFact, TrajectoryView, WorkerView


@dataclass(slots=True)
class Group:
    """Attempts at one task, while any of them is open."""

    open: dict[str, Trajectory] = field(default_factory=dict)
    finished_tokens: tuple[int, ...] = ()

    def finished(self, tokens: int) -> None:
        """A member came to its end; what the others' views say of the group is out of date."""
        self.finished_tokens += (tokens,)
        for trajectory in self.open.values():
            trajectory.forget_view()


@dataclass(slots=True)
class Trajectory:
    """One open attempt. Mutable and private to the scheduler; `view()` is what leaves it."""

    submitted: Submitted
    group: Group
    generation: int
    phase: Phase = Phase.RESTING
    turn: int = -1
    turn_tokens: list[int] = field(default_factory=list)
    progress_tokens: int = 0
    tools: list[ToolFact] = field(default_factory=list)
    context_tokens: int = 0
    ready_t: float = 0.0
    home_id: str | None = None
    home_generation: int = 0
    last_move_turn: int = -1
    ticket: int = -1
    """Number of its entry in a waiting lane; an entry with another number is void. -1: none."""
    arrival: int = -1
    """Breaks ties of order while it waits."""
    _view: TrajectoryView | None = None

    @classmethod
    def from_submitted(cls, event: Submitted, group: Group) -> Trajectory:
        return cls(
            event,
            group,
            event.generation,
            turn=len(event.turn_tokens) - 1,
            turn_tokens=list(event.turn_tokens),
            context_tokens=event.prompt_tokens,
        )

    @property
    def key(self) -> Key:
        return self.submitted.job, self.submitted.trajectory_id

    def turn_ready(self, event: TurnReady) -> None:
        self.generation = event.generation
        self.phase = Phase.WAITING
        self.turn = event.turn
        self.context_tokens = event.context_tokens
        self.progress_tokens = 0
        self.ready_t = event.t
        self._view = None

    def waits_again(self) -> None:
        self.phase = Phase.WAITING
        self._view = None

    def placed(self, worker: WorkerView) -> None:
        self.phase = Phase.DECODING
        if self.home_id not in (None, worker.worker_id):
            self.last_move_turn = self.turn
        self.home_id = worker.worker_id
        self.home_generation = worker.generation
        self._view = None

    def progressed(self, event: Progress) -> None:
        self.progress_tokens = event.tokens
        self._view = None

    def turn_finished(self, event: TurnFinished) -> None:
        self.phase = Phase.RESTING
        self.turn_tokens.append(event.tokens)
        self.progress_tokens = 0
        self.context_tokens = event.context_tokens
        self._view = None

    def tool_returned(self, event: ToolReturned) -> None:
        self.tools.append(
            ToolFact(
                turn=event.turn,
                tool=event.tool,
                status=event.status,
                size_tokens=event.size_tokens,
                seconds=event.seconds,
                call_hash=event.call_hash,
            )
        )
        self._view = None

    def lost_worker(self) -> None:
        self.phase = Phase.LOST
        self._view = None

    def forget_view(self) -> None:
        self._view = None

    def view(self) -> TrajectoryView:
        if self._view is None:
            submitted = self.submitted
            self._view = TrajectoryView(
                job=submitted.job,
                trajectory_id=submitted.trajectory_id,
                generation=self.generation,
                group_id=submitted.group_id,
                task_family=submitted.task_family,
                is_eval=submitted.is_eval,
                role=submitted.role,
                prompt_tokens=submitted.prompt_tokens,
                submitted_t=submitted.t,
                phase=self.phase,
                turn=self.turn,
                tokens=sum(self.turn_tokens) + self.progress_tokens,
                turn_tokens=tuple(self.turn_tokens),
                tools=tuple(self.tools),
                context_tokens=self.context_tokens,
                ready_t=self.ready_t,
                home_id=self.home_id,
                home_generation=self.home_generation,
                siblings_finished=self.group.finished_tokens,
                last_move_turn=self.last_move_turn,
            )
        return self._view


def demands_of(trajectories: Iterable[Trajectory]) -> dict[tuple[str, Role], Demand]:
    """Open attempts by job and role."""
    counts: dict[tuple[str, Role], list[int]] = {}
    for trajectory in trajectories:
        side = (trajectory.submitted.job, trajectory.submitted.role)
        count = counts.setdefault(side, [0, 0, 0, 0])
        match trajectory.phase:
            case Phase.WAITING | Phase.LOST:
                count[0] += 1
                count[3] += trajectory.context_tokens
            case Phase.DECODING:
                count[1] += 1
            case Phase.RESTING:
                count[2] += 1
    return {
        side: Demand(waiting=waiting, decoding=decoding, resting=resting, waiting_tokens=tokens)
        for side, (waiting, decoding, resting, tokens) in counts.items()
    }
