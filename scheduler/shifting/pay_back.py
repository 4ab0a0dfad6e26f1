"""Ours: move a worker only when what it earns in its new role pays for the way there and back.

    V * gain - requeue_cost - (t_out + t_in) * lost_throughput > margin

Everything is counted in fully loaded worker seconds (scheduler.shifting.rates), and V is the shorter
of the horizon and the time the regime is expected to last, so the same rule answers all questions:

- Rollout or GenRM? The split of serving workers that is worth most over V. Demand for judging includes
  attempts that will end before a worker could have changed over, by their forecasts; V ends when the
  receiver has worked off what there is.
- Into training? When a batch waits: a second less of training is worth as much as the workers that
  stand idle because of it. Before one waits: workers that are worth less where they are than the
  wait for them would cost go ahead, when the rest of the batch is expected within the time that the
  change takes.
- Out of training? While no batch waits and none is expected for longer than going and coming takes.
- With staleness, serving and training overlap and nobody stands idle for long: the number of trainers
  is then the one that makes the slower stage fastest (scheduler.shifting.balance).

A plan must leave each role with work a worker, fit into memory and end in a valid number of training
workers; what has just moved stays for `immunity_s`. A change between serving roles that takes more than
`gate` of the regime's expected life is not made (the gate of Nereus, arXiv 2609.34645, which found
half of the life best).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.events import Role
from scheduler.policies import ShiftPlan
from scheduler.shifting.balance import Balance
from scheduler.shifting.outlook import MeanLength, Outlook
from scheduler.shifting.rates import RoleRate
from scheduler.shifting.selection import ShiftWorld, idlest, recruits
from scheduler.shifting.situation import Situation, Surveyor
from scheduler.views import Member, ShiftView, TrainingView, TrajectoryView, WorkerView

_LONGEST_LIFE = 4.0
"""Horizons: no batch is counted on to be further away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayBackSettings:
    horizon_s: float = 60.0
    margin: float = 1.0
    """Worker seconds that a plan must earn beyond its cost, per worker moved."""
    gate: float = 0.5
    """Share of the regime's expected life that a worker may be out of service for."""
    cooldown_s: float = 3.0
    immunity_s: float = 8.0
    patience_s: float = 0.0
    """How long requests that nobody serves may wait for a worker that has other work. Where a
    worker is a large share of a role, judging pays when requests have gathered."""
    looks_ahead: bool = True
    """Whether forecast demand counts; else only requests that exist."""
    lends_trainers: bool = True


@dataclass(frozen=True, slots=True)
class _Batch:
    tokens: int
    lead_s: float
    """Out of service on the way into training."""
    due_s: float
    is_waiting: bool


class PayBack:
    def __init__(
        self,
        world: ShiftWorld,
        outlook: Outlook,
        judgements: MeanLength,
        settings: PayBackSettings | None = None,
    ) -> None:
        self._world = world
        self._settings = settings or PayBackSettings()
        self._surveyor = Surveyor(
            world, outlook, judgements, looks_ahead=self._settings.looks_ahead
        )
        self._balance = Balance(world)
        self._acted_t = float("-inf")
        self._unserved_since: dict[Role, float] = {}
        self.num_weighed = 0

    def state(self) -> dict[str, Any]:
        return self._balance.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._balance.restore(state)

    def plan(self, view: ShiftView) -> ShiftPlan | None:
        training = view.trainings.get(self._world.job)
        if training is None:
            return None
        rescue = self._rescue(view, training)
        now = self._surveyor.survey(view, training)
        self._balance.watch(
            view.t, training, worth=now.worth, serving=now.num_serving, left_s=now.left_s
        )
        if rescue is not None:
            return self._joined_by_trainers(rescue, self._out_of_training(view, training, now))
        is_urgent = training.batch_tokens is not None
        if view.t - self._acted_t < self._settings.cooldown_s and not is_urgent:
            return None
        plan = (
            self._into_training(view, training, now)
            or self._out_of_training(view, training, now)
            or self._rebalance(view, now)
        )
        if plan is not None:
            self._acted_t = view.t
        return plan

    def _rescue(self, view: ShiftView, training: TrainingView) -> ShiftPlan | None:
        """A role has work and nobody: whatever it costs, once patience is at its end."""
        job = self._world.job
        for role in (Role.ROLLOUT, Role.GENRM):
            is_needed = view.demand(job, role).total > 0
            if not is_needed or view.serving(job, role) or view.coming(job, role):
                self._unserved_since.pop(role, None)
                continue
            since_t = self._unserved_since.setdefault(role, view.t)
            spares = [
                idlest(view, job, other)
                for other in Role
                if other is not role and self._can_spare(view, training, other)
            ]
            if view.t - since_t < self._settings.patience_s:
                spares = [members for members in spares if self._is_idle(view, members)]
            donors = max(spares, key=len, default=())
            if donors:
                return self._world.plan(donors[:1], role)
        return None

    def _is_idle(self, view: ShiftView, members: Sequence[Member]) -> bool:
        """These have nothing to do: what has been asked for is done, or is not theirs to do."""
        if not members or members[0].duty.role is Role.TRAINING:
            return True
        demand = view.demand(self._world.job, members[0].duty.role)
        return not (demand.waiting or demand.decoding)

    @staticmethod
    def _joined_by_trainers(rescue: ShiftPlan, leaving: ShiftPlan | None) -> ShiftPlan:
        """After a step all trainers may be as idle as the one that is sent first."""
        role = next(iter(rescue.moves.values())).role
        if leaving is None or role is not Role.ROLLOUT:
            return rescue
        return ShiftPlan(moves={**leaving.moves, **rescue.moves})

    def _can_spare(self, view: ShiftView, training: TrainingView, role: Role) -> bool:
        """The last worker of a role with work stays: a plan that takes it would be refused."""
        job = self._world.job
        if role is Role.TRAINING:
            has_work = training.batch_tokens is not None
            if training.is_running:
                return False
        else:
            has_work = view.demand(job, role).total > 0
        return not has_work or len(view.serving(job, role)) > 1

    # ------------------------------------------------------------------------------- training

    def _into_training(
        self, view: ShiftView, training: TrainingView, now: Situation
    ) -> ShiftPlan | None:
        batch = self._batch(training, now)
        if training.is_running or batch is None:
            return None
        job = self._world.job
        present = len(view.serving(job, Role.TRAINING)) + len(view.coming(job, Role.TRAINING))
        donors = recruits(view, self._world, immunity_s=self._settings.immunity_s)
        if self._world.max_staleness:
            missing = self._balance.trainers(now.num_workers) - present
            return self._world.plan(donors[: max(0, missing)], Role.TRAINING)
        best, best_gain = 0, 0.0
        for number in range(1, len(donors) + 1):
            if self._world.valid_size(present + number) < present + number:
                continue
            self.num_weighed += 1
            gain = self._training_gain(now, donors[:number], present, batch)
            is_forced = batch.is_waiting and present == 0 and best == 0
            if is_forced or gain > best_gain + self._settings.margin * (number - best):
                best, best_gain = number, gain
        return self._world.plan(donors[:best], Role.TRAINING)

    def _batch(self, training: TrainingView, now: Situation) -> _Batch | None:
        """The batch that waits, or the one that is about to."""
        lead_s = self._world.seconds(Role.ROLLOUT, Role.TRAINING)
        if training.batch_tokens is not None:
            return _Batch(training.batch_tokens, lead_s, 0.0, is_waiting=True)
        is_near = self._settings.looks_ahead and now.batch_s <= lead_s
        if is_near and training.last_step_tokens:
            return _Batch(training.last_step_tokens, lead_s, now.batch_s, is_waiting=False)
        return None

    def _training_gain(
        self, now: Situation, donors: list[Member], present: int, batch: _Batch
    ) -> float:
        """Worker seconds earned by letting these join the next step."""
        world = self._world
        joined_s = world.train_s(batch.tokens, present + len(donors))
        later_s = batch.lead_s + joined_s
        if present:
            alone_s = world.train_s(batch.tokens, present)
        else:
            alone_s = batch.lead_s + world.train_s(batch.tokens, 1)
        back_s = world.seconds(Role.TRAINING, Role.ROLLOUT)
        if batch.is_waiting:
            saved_s = alone_s - later_s
            away_s = later_s + back_s
        else:
            saved_s = min(alone_s, later_s) - joined_s - max(0.0, batch.lead_s - batch.due_s)
            away_s = batch.due_s
        way_back = back_s * len(donors) if batch.is_waiting and present else 0.0
        idle = max(0.0, now.num_workers - now.worth)
        lost = now.lost(donors) * away_s
        return saved_s * idle - lost - way_back - self._requeue_cost(donors)

    def _out_of_training(
        self, view: ShiftView, training: TrainingView, now: Situation
    ) -> ShiftPlan | None:
        is_needed = training.is_running or training.batch_tokens is not None
        if is_needed or not self._settings.lends_trainers:
            return None
        trainers = self._idlest(view, Role.TRAINING)
        if self._world.max_staleness and training.version:
            return self._surplus(now, trainers)
        world, rollout = self._world, now.works[Role.ROLLOUT]
        life_s = min(now.batch_s, _LONGEST_LIFE * self._settings.horizon_s)
        earning_s = (
            life_s
            - world.seconds(Role.TRAINING, Role.ROLLOUT)
            - world.seconds(Role.ROLLOUT, Role.TRAINING)
        )
        present = len(view.serving(world.job, Role.TRAINING))
        best, best_gain = 0, 0.0
        for number in range(1, len(trainers) + 1 if earning_s > 0 else 0):
            left = present - number
            if left and world.valid_size(left) != left:
                continue
            self.num_weighed += 1
            more = rollout.worth(number) - rollout.worth()
            gain = min(more * earning_s, rollout.stock_s)
            if gain > best_gain + self._settings.margin * number:
                best, best_gain = number, gain
        return world.plan(trainers[:best], Role.ROLLOUT)

    def _surplus(self, now: Situation, trainers: list[Member]) -> ShiftPlan | None:
        """More trainers than the balance asks for, where serving could use them."""
        number = len(trainers) - self._balance.trainers(now.num_workers)
        if number <= 0 or now.batch_s <= 0:
            return None
        rollout = now.works[Role.ROLLOUT]
        earned = (rollout.worth(number) - rollout.worth()) * self._settings.horizon_s
        cost = number * self._world.seconds(Role.TRAINING, Role.ROLLOUT)
        return self._world.plan(trainers[:number], Role.ROLLOUT) if earned > cost else None

    # -------------------------------------------------------------------------------- serving

    def _rebalance(self, view: ShiftView, now: Situation) -> ShiftPlan | None:
        if not self._world.has_judge:
            return None
        best: tuple[list[Member], Role] | None = None
        best_gain = 0.0
        for donor, receiver in ((Role.ROLLOUT, Role.GENRM), (Role.GENRM, Role.ROLLOUT)):
            donors = self._idlest(view, donor)
            keep = 1 if view.demand(self._world.job, donor).total else 0
            most = min(len(donors), now.works[donor].num_workers - keep)
            for number in range(1, most + 1):
                self.num_weighed += 1
                gain = self._serving_gain(now, donors[:number], donor, receiver)
                if gain > best_gain + self._settings.margin * number:
                    best, best_gain = (donors[:number], receiver), gain
        return None if best is None else self._world.plan(*best)

    def _serving_gain(
        self, now: Situation, donors: list[Member], donor: Role, receiver: Role
    ) -> float:
        take = now.works[receiver]
        had, has = take.worth(), take.worth(len(donors))
        away_s = self._world.seconds(donor, receiver)
        life_s = min(self._settings.horizon_s, take.stock_s / max(0.1, has) + away_s)
        if away_s > self._settings.gate * life_s:
            return 0.0
        earned = min((has - had) * (life_s - away_s), max(0.0, take.stock_s - had * away_s))
        return earned - now.lost(donors) * life_s - self._requeue_cost(donors)

    def _requeue_cost(self, donors: list[Member]) -> float:
        """Worker seconds to compute the contexts of what they run elsewhere."""
        return sum(
            member.worker.running_tokens * self._world.shapes[member.duty.role].prefill.per_token
            for member in donors
            if member.duty.role is not Role.TRAINING
        )

    def _idlest(self, view: ShiftView, role: Role) -> list[Member]:
        return list(idlest(view, self._world.job, role, immunity_s=self._settings.immunity_s))

    # -------------------------------------------------------------------------------- quiesce

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        """When a turn like its last ones would end before its context is computed elsewhere."""
        if not trajectory.turn_tokens:
            return False
        shape = self._world.shapes[trajectory.role]
        context = worker.running_tokens / max(1, worker.num_running)
        rate = RoleRate(shape, self._world.max_running, context)
        expected = sum(trajectory.turn_tokens) / len(trajectory.turn_tokens)
        made = trajectory.tokens - sum(trajectory.turn_tokens)
        left_s = max(0.0, expected - made) * rate.step_s(worker.num_running)
        return left_s < shape.prefill.seconds(trajectory.context_tokens, 0)
