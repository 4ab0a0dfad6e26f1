"""Rules on memory in use, in the manner of DynaRL and of PivotRL's rule-based baseline.

A role whose workers use little of their memory and have nobody waiting gives one worker to a role whose
memory is full or whose requests wait. Training workers help with rollout while no batch waits,
all or none, and come back when one does.
"""

from __future__ import annotations

from scheduler.events import Role
from scheduler.policies import ShiftPlan
from scheduler.shifting.lent_trainers import LentTrainers
from scheduler.shifting.selection import ShiftWorld, idlest
from scheduler.views import ShiftView, TrajectoryView, WorkerView


class KvRule:
    num_weighed = 0

    def __init__(
        self,
        world: ShiftWorld,
        *,
        low: float = 0.1,
        high: float = 0.8,
        cooldown_s: float = 20.0,
        immunity_s: float = 10.0,
        lends_trainers: bool = True,
        home_trainers: int = 0,
    ) -> None:
        """`home_trainers`: workers that train when a batch waits."""
        self._world = world
        self._low = low
        self._high = high
        self._cooldown_s = cooldown_s
        self._immunity_s = immunity_s
        self._lends = lends_trainers
        self._trainers = LentTrainers(world, home_trainers)
        self._acted_t = -cooldown_s

    def plan(self, view: ShiftView) -> ShiftPlan | None:
        if view.open_shifts or view.t - self._acted_t < self._cooldown_s:
            return self._trainers.called_back(view) if not view.open_shifts else None
        plan = self._trainers.called_back(view)
        if plan is None and self._lends:
            plan = self._trainers.lent(view)
        plan = plan or self._balance(view)
        if plan is not None:
            self._acted_t = view.t
        return plan

    def _balance(self, view: ShiftView) -> ShiftPlan | None:
        world = self._world
        if not world.has_judge:
            return None
        for donor, receiver in ((Role.ROLLOUT, Role.GENRM), (Role.GENRM, Role.ROLLOUT)):
            gives = self._use(view, donor) < self._low and not self._waiting(view, donor)
            takes = self._use(view, receiver) > self._high or self._waiting(view, receiver)
            if gives and takes:
                donors = idlest(view, world.job, donor, immunity_s=self._immunity_s)
                return world.plan(donors[:1], receiver)
        return None

    def _use(self, view: ShiftView, role: Role) -> float:
        """Share of the role's memory that running turns fill."""
        members = view.serving(self._world.job, role)
        room = len(members) * self._world.shapes[role].kv_tokens
        return sum(m.worker.running_tokens for m in members) / room if room else 0.0

    def _waiting(self, view: ShiftView, role: Role) -> bool:
        return view.demand(self._world.job, role).waiting > 0

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        return False
