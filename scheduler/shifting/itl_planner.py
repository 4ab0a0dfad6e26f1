"""PivotRL's planner: the shift whose throughput gain over a horizon pays for what it interrupts.

Every second, unless a decision is in flight or the cooldown runs: for each number of workers to move
between rollout and GenRM, the objective is `H * (F' - F) - Phi`, where `F` is the throughput of the
slowest role weighed by its outstanding requests and `Phi` what the moved requests lose while they
move. Training moves as one unit: its workers help with rollout while no batch waits, and return.
It reacts to requests that exist. (arXiv 2610.16866; the planner here scores counts of workers, not
single requests.)
"""

from __future__ import annotations

from scheduler.events import Role
from scheduler.policies import ShiftPlan
from scheduler.shifting.lent_trainers import LentTrainers
from scheduler.shifting.rates import RoleRate
from scheduler.shifting.selection import ShiftWorld, idlest
from scheduler.views import ShiftView, TrajectoryView, WorkerView


class ItlPlanner:
    def __init__(
        self,
        world: ShiftWorld,
        *,
        horizon_s: float = 60.0,
        min_gain: float = 0.05,
        cooldown_s: float = 20.0,
        immunity_s: float = 10.0,
        num_trainers: int = 0,
        harmonic: bool = False,
    ) -> None:
        self._world = world
        self._horizon_s = horizon_s
        self._min_gain = min_gain
        self._cooldown_s = cooldown_s
        self._immunity_s = immunity_s
        self._trainers = LentTrainers(world, num_trainers)
        self._harmonic = harmonic
        self._acted_t = -cooldown_s
        self.num_weighed = 0

    def plan(self, view: ShiftView) -> ShiftPlan | None:
        if view.open_shifts:
            return None
        plan = self._trainers.called_back(view) or self._trainers.lent(view)
        if plan is None and view.t - self._acted_t >= self._cooldown_s:
            plan = self._rebalance(view)
        if plan is not None:
            self._acted_t = view.t
        return plan

    def _rebalance(self, view: ShiftView) -> ShiftPlan | None:
        world = self._world
        if not world.has_judge:
            return None
        counts = {role: len(view.serving(world.job, role)) for role in (Role.ROLLOUT, Role.GENRM)}
        now = self._score(view, counts)
        best, best_gain = None, self._min_gain * max(now, 1e-9) * self._horizon_s
        for donor, receiver in ((Role.ROLLOUT, Role.GENRM), (Role.GENRM, Role.ROLLOUT)):
            donors = idlest(view, world.job, donor, immunity_s=self._immunity_s)
            keep = 1 if view.demand(world.job, donor).total else 0
            for number in range(1, min(len(donors), counts[donor] - keep) + 1):
                self.num_weighed += 1
                after = {donor: counts[donor] - number, receiver: counts[receiver] + number}
                moved = sum(m.worker.num_running for m in donors[:number])
                gain = self._horizon_s * (self._score(view, after) - now) - self._lost(
                    view, donor, moved
                )
                if gain > best_gain:
                    best, best_gain = (donors[:number], receiver), gain
        return None if best is None else world.plan(*best)

    def _score(self, view: ShiftView, counts: dict[Role, int]) -> float:
        """Requests a second of the slowest role per outstanding request, in rollout's measure."""
        total = sum(view.demand(self._world.job, role).total for role in counts)
        rates, weights = [], []
        for role, number in counts.items():
            demand = view.demand(self._world.job, role)
            active = demand.waiting + demand.decoding
            if active:
                rates.append(self._rate(view, role).tokens_per_s(active, number))
                weights.append(demand.total / total)
        if not rates:
            return 0.0
        if self._harmonic:
            if min(rates) <= 0:
                return 0.0
            shares = sum(w / r for w, r in zip(weights, rates, strict=True))
            return sum(weights) / shares
        return min(r / w for w, r in zip(weights, rates, strict=True))

    def _lost(self, view: ShiftView, donor: Role, moved: int) -> float:
        """Tokens that moved requests do not make meanwhile, weighed like the score."""
        receiver = Role.GENRM if donor is Role.ROLLOUT else Role.ROLLOUT
        seconds = self._world.seconds(donor, receiver)
        return seconds / self._rate(view, donor).step_s(max(1, moved)) * moved * 0.1

    def _rate(self, view: ShiftView, role: Role) -> RoleRate:
        members = view.serving(self._world.job, role)
        running = sum(m.worker.num_running for m in members)
        tokens = sum(m.worker.running_tokens for m in members)
        demand = view.demand(self._world.job, role)
        if running:
            context = tokens / running
        else:
            context = demand.waiting_tokens / max(1, demand.waiting)
        return RoleRate(self._world.shapes[role], self._world.max_running, max(context, 1.0))

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        return False
