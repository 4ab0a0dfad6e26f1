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

A plan must leave each role with work a worker, fit into memory and end in a valid number of training
workers; what has just moved stays for `immunity_s`. A regime that has lasted shorter than a move
takes pays for nothing (Nereus' gate, arXiv 2609.34645: pay-back within `gate` of its life).
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.events import Role
from scheduler.policies import ShiftPlan
from scheduler.shifting.balance import Balance
from scheduler.shifting.outlook import MeanLength, Outlook
from scheduler.shifting.rates import RoleRate
from scheduler.shifting.selection import ShiftWorld, idlest, recruits
from scheduler.views import Member, ShiftView, TrainingView, TrajectoryView, WorkerView

_UNKNOWN_TOKENS = 1000.0
"""Of an attempt, when no turn of any has been ready yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayBackSettings:
    horizon_s: float = 60.0
    margin: float = 1.0
    """Worker seconds that a plan must earn beyond its cost, per worker moved."""
    gate: float = 0.5
    """Share of the regime's expected life within which a move must have paid."""
    cooldown_s: float = 3.0
    immunity_s: float = 8.0
    looks_ahead: bool = True
    """Whether forecast demand counts; else only requests that exist."""
    lends_trainers: bool = True


@dataclass(frozen=True, slots=True)
class _State:
    """Numbers of a plan's starting point."""

    rollout: RoleRate
    genrm: RoleRate | None
    rollouts: float
    """Attempts to be served in parallel."""
    judgements: float
    rollout_tokens: float
    """Still to be sampled."""
    genrm_tokens: float
    batch_s: float
    """Until the next batch is full, by forecast."""


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
        self._outlook = outlook
        self._settings = settings or PayBackSettings()
        self._acted_t = -1e9
        self._balance = Balance(world)
        self._judgements = judgements

    # -------------------------------------------------------------------------------- planning

    def plan(self, view: ShiftView) -> ShiftPlan | None:
        training = view.trainings.get(self._world.job)
        if training is None:
            return None
        rescue = self._rescue(view, training)
        if rescue is not None:
            return rescue
        state = self._state(view, training)
        self._balance.watch(
            view.t,
            training,
            worth=self._serving_worth(view, state),
            serving=self._num(view, Role.ROLLOUT) + self._num(view, Role.GENRM),
            left_s=self._left_s(view, state),
        )
        is_urgent = training.batch_tokens is not None
        if view.t - self._acted_t < self._settings.cooldown_s and not is_urgent:
            return None
        plan = self._into_training(view, training, state)
        if plan is None:
            plan = self._out_of_training(view, training, state)
        if plan is None:
            plan = self._rebalance(view, state)
        if plan is not None:
            self._acted_t = view.t
        return plan

    def _rescue(self, view: ShiftView, training: TrainingView) -> ShiftPlan | None:
        """A role has work and nobody: whatever it costs."""
        job = self._world.job
        needs = {
            Role.ROLLOUT: view.demand(job, Role.ROLLOUT).total > 0,
            Role.GENRM: view.demand(job, Role.GENRM).total > 0,
        }
        for role, is_needed in needs.items():
            if not is_needed or view.serving(job, role) or view.coming(job, role):
                continue
            donors = max((idlest(view, job, other) for other in Role if other is not role), key=len)
            return self._world.plan(donors[:1], role)
        return None

    # ------------------------------------------------------------------------------- training

    def _into_training(
        self, view: ShiftView, training: TrainingView, state: _State
    ) -> ShiftPlan | None:
        if training.is_running:
            return None
        job = self._world.job
        present = len(view.serving(job, Role.TRAINING)) + len(view.coming(job, Role.TRAINING))
        batch = self._batch(training, state)
        if batch is None:
            return None
        donors = recruits(view, self._world, immunity_s=self._settings.immunity_s)
        if self._world.max_staleness:
            missing = self._balance.trainers(len(view.members) + len(view.open_shifts)) - present
            return self._world.plan(donors[: max(0, missing)], Role.TRAINING)
        best, best_gain = 0, 0.0
        for number in range(1, len(donors) + 1):
            if self._world.valid_size(present + number) < present + number:
                continue
            gain = self._training_gain(view, state, donors[:number], present, batch)
            is_forced = batch.is_waiting and present == 0 and best == 0
            if is_forced or gain > best_gain + self._settings.margin * (number - best):
                best, best_gain = number, gain
        return self._world.plan(donors[:best], Role.TRAINING)

    def _batch(self, training: TrainingView, state: _State) -> _Batch | None:
        """The batch that waits, or the one that is about to."""
        lead_s = self._shift_s(Role.ROLLOUT, Role.TRAINING)
        if training.batch_tokens is not None:
            return _Batch(training.batch_tokens, lead_s, 0.0, is_waiting=True)
        is_near = self._settings.looks_ahead and state.batch_s <= lead_s
        if is_near and training.last_step_tokens:
            return _Batch(training.last_step_tokens, lead_s, state.batch_s, is_waiting=False)
        return None

    def _training_gain(
        self,
        view: ShiftView,
        state: _State,
        donors: list[Member],
        present: int,
        batch: _Batch,
    ) -> float:
        """Worker seconds earned by letting these join the next step."""
        cost = self._world.training
        joined_s = cost.seconds(batch.tokens, present + len(donors))
        later_s = batch.lead_s + joined_s
        if present:
            alone_s = cost.seconds(batch.tokens, present)
        else:
            alone_s = batch.lead_s + cost.seconds(batch.tokens, 1)
        lost = self._serving_lost(view, state, donors)
        total = len(view.members) + len(view.open_shifts)
        idle = max(0.0, total - self._serving_worth(view, state))
        back_s = self._shift_s(Role.TRAINING, Role.ROLLOUT)
        if batch.is_waiting:
            saved_s = alone_s - later_s
            away_s = later_s + back_s
        else:
            saved_s = min(alone_s, later_s) - joined_s - max(0.0, batch.lead_s - batch.due_s)
            away_s = batch.due_s
        way_back = back_s * len(donors) if batch.is_waiting and present else 0.0
        return saved_s * idle - lost * away_s - way_back - self._requeue_cost(donors)

    def _out_of_training(
        self, view: ShiftView, training: TrainingView, state: _State
    ) -> ShiftPlan | None:
        if training.is_running or training.batch_tokens is not None:
            return None
        if not self._settings.lends_trainers:
            return None
        job = self._world.job
        trainers = list(self._idlest(view, Role.TRAINING))
        if self._world.max_staleness and training.version:
            return self._surplus(view, state, trainers)
        out_s = self._shift_s(Role.TRAINING, Role.ROLLOUT)
        in_s = self._shift_s(Role.ROLLOUT, Role.TRAINING)
        life_s = min(state.batch_s, 4 * self._settings.horizon_s)
        earning_s = life_s - out_s - in_s
        if not trainers or earning_s <= 0:
            return None
        serving = self._num(view, Role.ROLLOUT)
        present = len(view.serving(job, Role.TRAINING))
        best, best_gain = 0, 0.0
        for number in range(1, len(trainers) + 1):
            left = present - number
            if left and self._world.valid_size(left) != left:
                continue
            more = state.rollout.worth(state.rollouts, serving + number) - state.rollout.worth(
                state.rollouts, serving
            )
            gain = min(more * earning_s, self._stock(state.rollout, state.rollout_tokens))
            if gain > best_gain + self._settings.margin * number:
                best, best_gain = number, gain
        return self._world.plan(trainers[:best], Role.ROLLOUT)

    def _surplus(self, view: ShiftView, state: _State, trainers: list[Member]) -> ShiftPlan | None:
        """More trainers than the balance asks for, where serving could use them."""
        number = len(trainers) - self._balance.trainers(len(view.members) + len(view.open_shifts))
        if number <= 0 or state.batch_s <= 0:
            return None
        serving = self._num(view, Role.ROLLOUT)
        more = state.rollout.worth(state.rollouts, serving + number) - state.rollout.worth(
            state.rollouts, serving
        )
        is_useful = more * self._settings.horizon_s > number * self._shift_s(
            Role.TRAINING, Role.ROLLOUT
        )
        return self._world.plan(trainers[:number], Role.ROLLOUT) if is_useful else None

    # -------------------------------------------------------------------------------- serving

    def _rebalance(self, view: ShiftView, state: _State) -> ShiftPlan | None:
        if state.genrm is None:
            return None
        best: tuple[list[Member], Role] | None = None
        best_gain = 0.0
        for donor, receiver in ((Role.ROLLOUT, Role.GENRM), (Role.GENRM, Role.ROLLOUT)):
            donors = list(self._idlest(view, donor))
            keep = 1 if view.demand(self._world.job, donor).total else 0
            for number in range(1, min(len(donors), self._num(view, donor) - keep) + 1):
                gain = self._serving_gain(view, state, donors[:number], donor, receiver)
                if gain > best_gain + self._settings.margin * number:
                    best, best_gain = (donors[:number], receiver), gain
        return None if best is None else self._world.plan(*best)

    def _serving_gain(
        self, view: ShiftView, state: _State, donors: list[Member], donor: Role, receiver: Role
    ) -> float:
        rates = {Role.ROLLOUT: state.rollout, Role.GENRM: state.genrm}
        active = {Role.ROLLOUT: state.rollouts, Role.GENRM: state.judgements}
        tokens = {Role.ROLLOUT: state.rollout_tokens, Role.GENRM: state.genrm_tokens}
        give, take = rates[donor], rates[receiver]
        assert give is not None
        assert take is not None
        number = len(donors)
        away_s = self._shift_s(donor, receiver)
        had = take.worth(active[receiver], self._num(view, receiver))
        more = take.worth(active[receiver], self._num(view, receiver) + number) - had
        lost = give.worth(active[donor], self._num(view, donor)) - give.worth(
            active[donor], self._num(view, donor) - number
        )
        stock = self._stock(take, tokens[receiver])
        life_s = min(self._settings.horizon_s, stock / max(0.1, had + more) + away_s)
        if away_s > self._settings.gate * 2 * life_s:
            return 0.0
        earned = min(more * (life_s - away_s), max(0.0, stock - had * away_s))
        return earned - lost * life_s - self._requeue_cost(donors)

    # ---------------------------------------------------------------------------------- state

    def _state(self, view: ShiftView, training: TrainingView) -> _State:
        world = self._world
        rollout = self._rate(view, Role.ROLLOUT)
        demand = view.demand(world.job, Role.ROLLOUT)
        active = demand.waiting + demand.decoding
        token_s = rollout.step_s(active / max(1, self._num(view, Role.ROLLOUT)))
        left = list(self._outlook.left(view.t, token_s))
        mean = sum(left) / len(left) if left else _UNKNOWN_TOKENS
        left += [mean] * max(0, demand.total - len(left))
        rollout_tokens = sum(left)
        genrm, judgements, genrm_tokens = None, 0.0, 0.0
        if world.has_judge:
            genrm = self._rate(view, Role.GENRM)
            judged = view.demand(world.job, Role.GENRM)
            judgements = float(judged.waiting + judged.decoding)
            if self._settings.looks_ahead:
                soon_s = self._shift_s(Role.ROLLOUT, Role.GENRM)
                judgements += sum(tokens * token_s < soon_s for tokens in left)
            genrm_tokens = judgements * self._judgements.tokens
        rollouts = active + 0.5 * demand.resting
        batch_s = self._batch_s(view, training, left, token_s, genrm_tokens, genrm)
        return _State(rollout, genrm, rollouts, judgements, rollout_tokens, genrm_tokens, batch_s)

    def _batch_s(
        self,
        view: ShiftView,
        training: TrainingView,
        left: list[float],
        token_s: float,
        genrm_tokens: float,
        genrm: RoleRate | None,
    ) -> float:
        """Forecast time until enough groups are accepted for the next batch."""
        ready = training.accepted_groups - training.version * self._world.groups_per_step
        needed = self._world.groups_per_step - ready
        if needed <= 0:
            return 0.0
        seconds = 0.0
        if left:
            share = min(1.0, needed / max(1, training.running_groups))
            ordered = sorted(left)
            seconds = ordered[min(len(ordered) - 1, int(share * len(ordered)))] * token_s
            rate = self._rate(view, Role.ROLLOUT)
            number = max(1, self._num(view, Role.ROLLOUT))
            seconds = max(seconds, share * sum(left) / (rate.peak * number))
        if genrm is not None and genrm_tokens > 0:
            number = max(1, self._num(view, Role.GENRM))
            seconds += genrm_tokens / (genrm.peak * number)
        return seconds

    def _rate(self, view: ShiftView, role: Role) -> RoleRate:
        members = view.serving(self._world.job, role)
        running = sum(m.worker.num_running for m in members)
        tokens = sum(m.worker.running_tokens for m in members)
        demand = view.demand(self._world.job, role)
        count = running + demand.waiting
        context = (tokens + demand.waiting_tokens) / count if count else 2000.0
        return RoleRate(self._world.shapes[role], self._world.max_running, max(1.0, context))

    def _num(self, view: ShiftView, role: Role) -> int:
        """Workers in a role or on their way to it."""
        job = self._world.job
        return len(view.serving(job, role)) + len(view.coming(job, role))

    def _serving_worth(self, view: ShiftView, state: _State) -> float:
        worth = state.rollout.worth(state.rollouts, self._num(view, Role.ROLLOUT))
        if state.genrm is not None:
            worth += state.genrm.worth(state.judgements, self._num(view, Role.GENRM))
        return worth

    def _serving_lost(self, view: ShiftView, state: _State, donors: list[Member]) -> float:
        """Worth that serving loses with these workers."""
        lost = 0.0
        for role, rate, active in (
            (Role.ROLLOUT, state.rollout, state.rollouts),
            (Role.GENRM, state.genrm, state.judgements),
        ):
            number = sum(member.duty.role is role for member in donors)
            if rate is not None and number:
                total = self._num(view, role)
                lost += rate.worth(active, total) - rate.worth(active, total - number)
        return lost

    def _requeue_cost(self, donors: list[Member]) -> float:
        """Worker seconds to compute the contexts of what they run, and of what rests, elsewhere."""
        return sum(
            member.worker.running_tokens * self._world.shapes[member.duty.role].prefill.per_token
            for member in donors
            if member.duty.role is not Role.TRAINING
        )

    def _left_s(self, view: ShiftView, state: _State) -> float:
        """Worker seconds of serving that open groups still need."""
        left_s = self._stock(state.rollout, state.rollout_tokens)
        if state.genrm is not None:
            job = self._world.job
            number = view.demand(job, Role.ROLLOUT).total + view.demand(job, Role.GENRM).total
            left_s += self._stock(state.genrm, number * self._judgements.tokens)
        return left_s

    def _stock(self, rate: RoleRate, tokens: float) -> float:
        """Worker seconds that these tokens take."""
        return tokens / rate.peak

    def _idlest(self, view: ShiftView, role: Role) -> list[Member]:
        return list(idlest(view, self._world.job, role, immunity_s=self._settings.immunity_s))

    def _shift_s(self, source: Role, target: Role) -> float:
        return self._world.shift_s.get((source, target), 5.0)

    # -------------------------------------------------------------------------------- quiesce

    def lets_finish(self, trajectory: TrajectoryView, worker: WorkerView) -> bool:
        """When a turn like its last ones would end before its context is computed elsewhere."""
        if not trajectory.turn_tokens:
            return False
        rate = RoleRate(self._world.shapes[trajectory.role], self._world.max_running, 2000.0)
        expected = sum(trajectory.turn_tokens) / len(trajectory.turn_tokens)
        made = trajectory.tokens - sum(trajectory.turn_tokens)
        left_s = max(0.0, expected - made) * rate.step_s(worker.num_running)
        shape = self._world.shapes[trajectory.role]
        return left_s < shape.prefill.seconds(trajectory.context_tokens, 0)
