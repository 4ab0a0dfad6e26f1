"""Which ready turn gets which slot, and when: the routing policies' answers, carried out.

A turn waits in a lane until its policy names a worker for the lane's head; then it holds a slot in
the same step. Placement is tried only when something has changed that it could depend on, so asking
after every event costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.decisions import Decision, Place, Prewarm
from scheduler.events import Role
from scheduler.fleet import Fleet
from scheduler.policies import Observer, PrewarmPolicy, RoutePolicy
from scheduler.routing.exploration import Exploration
from scheduler.trajectories import Trajectory
from scheduler.waiting import WaitingLanes


class Placing:
    """See the module docstring."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        routing: Mapping[Role, RoutePolicy],
        observers: Mapping[Role, tuple[Observer, ...]],
        exploration: Exploration | None,
        prewarming: PrewarmPolicy | None,
    ) -> None:
        """`observers` are told who was placed; only rollout is explored with."""
        self._fleet = fleet
        self._routing = routing
        self._observers = observers
        self._exploration = exploration
        self._prewarming = prewarming
        self._waiting = WaitingLanes()
        self._tried = (0, 0)
        """Changes of the fleet and of the lanes after which placement was tried last; an end of an
        attempt may make room that only the router knows of, so it is tried again then too."""

    def enqueue(self, trajectory: Trajectory) -> None:
        """A turn is ready, or what its place in the queue depends on has changed."""
        view = trajectory.view()
        routing = self._routing[view.role]
        lane = routing.lane(view, self._fleet.serving(view.role, view.job))
        if view.role is not Role.ROLLOUT:
            lane = f"{view.role} {lane}"
        self._waiting.push(trajectory, lane, routing.order(view))

    def ended(self, trajectory: Trajectory) -> None:
        """It waits no more, and leaves room."""
        self._waiting.withdraw(trajectory)
        self._tried = (-1, -1)

    def prewarm(self, t: float, trajectory: Trajectory) -> list[Decision]:
        """A tool of the trajectory has started: compute its context where it may go next."""
        if self._prewarming is None:
            return []
        view = trajectory.view()
        worker = self._prewarming.prewarm(view, self._fleet.serving(view.role, view.job))
        if worker is None:
            return []
        return [
            Prewarm(
                t=t,
                job=view.job,
                trajectory_id=view.trajectory_id,
                generation=view.generation,
                worker_id=worker.worker_id,
                worker_generation=worker.generation,
            )
        ]

    def place_waiting(self, t: float) -> list[Decision]:
        """Slots for all heads of lanes that can be served now."""
        decisions: list[Decision] = []
        if self._tried == (self._fleet.num_changes, self._waiting.num_pushed):
            return decisions
        for lane in self._waiting.lanes():
            while (trajectory := self._waiting.head(lane)) is not None:
                place = self._place(t, trajectory)
                if place is None:
                    break
                self._waiting.pop(lane)
                decisions.append(place)
        self._tried = (self._fleet.num_changes, self._waiting.num_pushed)
        return decisions

    def _place(self, t: float, trajectory: Trajectory) -> Place | None:
        job, trajectory_id = trajectory.key
        role = trajectory.submitted.role
        workers = self._fleet.serving(role, job)
        worker = self._routing[role].choose(trajectory.view(), workers)
        if worker is None:
            return None
        propensity = 1.0
        if self._exploration is not None and role is Role.ROLLOUT:
            worker, propensity = self._exploration.deviate(worker, workers)
        self._fleet.take(trajectory.key, worker, trajectory.context_tokens)
        trajectory.placed(worker)
        for observer in self._observers[role]:
            observer.placed(trajectory.view())
        return Place(
            t=t,
            job=job,
            trajectory_id=trajectory_id,
            generation=trajectory.generation,
            turn=trajectory.turn,
            worker_id=worker.worker_id,
            worker_generation=worker.generation,
            propensity=propensity,
        )
