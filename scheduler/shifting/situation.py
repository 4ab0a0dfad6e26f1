"""Where a job stands, in the units of a pay-back rule: what each role has to do and how fast it does it.

Put together once a plan from a view and the forecasts of open attempts. Work is in fully loaded worker
seconds; a role's `worth` is how many fully loaded workers its workers amount to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.events import Role
from scheduler.shifting.outlook import MeanLength, Outlook
from scheduler.shifting.rates import RoleRate
from scheduler.shifting.selection import ShiftWorld
from scheduler.views import Member, ShiftView, TrainingView

_UNKNOWN_TOKENS = 1000.0
"""Of an attempt, when no turn of any has been ready yet."""
_UNKNOWN_CONTEXT = 2000.0
_RESTING_SHARE = 0.5
"""Of attempts between two turns: they are back soon."""


@dataclass(frozen=True, slots=True)
class RoleWork:
    """What one serving role has to do."""

    rate: RoleRate
    sequences: float
    """To be served in parallel."""
    tokens: float
    """Still to be sampled."""
    num_workers: int
    """In the role or on their way to it."""

    def worth(self, change: int = 0) -> float:
        """Of its workers, with so many more or fewer."""
        return self.rate.worth(self.sequences, self.num_workers + change)

    @property
    def stock_s(self) -> float:
        """Worker seconds that its tokens take."""
        return self.tokens / self.rate.peak


@dataclass(frozen=True, slots=True)
class Situation:
    works: Mapping[Role, RoleWork]
    """Of rollout and, where there is a reward model, GenRM."""
    num_workers: int
    """Of all roles, on their way or not."""
    batch_s: float
    """Forecast time until enough groups are accepted for the next batch."""
    left_s: float
    """Worker seconds of serving that open groups still need, judgements to come included."""

    @property
    def worth(self) -> float:
        return sum(work.worth() for work in self.works.values())

    @property
    def num_serving(self) -> int:
        return sum(work.num_workers for work in self.works.values())

    def lost(self, donors: Iterable[Member]) -> float:
        """Worth that serving loses with these workers."""
        roles = [member.duty.role for member in donors]
        return sum(
            work.worth() - work.worth(-roles.count(role))
            for role, work in self.works.items()
            if role in roles
        )


class Surveyor:
    """Makes situations."""

    def __init__(
        self, world: ShiftWorld, outlook: Outlook, judgements: MeanLength, *, looks_ahead: bool
    ) -> None:
        self._world = world
        self._outlook = outlook
        self._judgements = judgements
        self._looks_ahead = looks_ahead

    def survey(self, view: ShiftView, training: TrainingView) -> Situation:
        demand = view.demand(self._world.job, Role.ROLLOUT)
        rate = self._rate(view, Role.ROLLOUT)
        active = demand.waiting + demand.decoding
        number = self._num(view, Role.ROLLOUT)
        token_s = rate.step_s(active / max(1, number))
        left = self._left(view.t, token_s, demand.total)
        sequences = active + _RESTING_SHARE * demand.resting
        works = {Role.ROLLOUT: RoleWork(rate, sequences, sum(left), number)}
        left_s = works[Role.ROLLOUT].stock_s
        if self._world.has_judge:
            judging = works[Role.GENRM] = self._judging(view, left, token_s)
            to_judge = demand.total + view.demand(self._world.job, Role.GENRM).total
            left_s += to_judge * self._judgements.tokens / judging.rate.peak
        return Situation(
            works=works,
            num_workers=len(view.members) + len(view.open_shifts),
            batch_s=self._batch_s(training, works, left, token_s),
            left_s=left_s,
        )

    def _left(self, t: float, token_s: float, num_open: int) -> list[float]:
        """Tokens that each open attempt still has to sample."""
        left = list(self._outlook.left(t, token_s))
        mean = sum(left) / len(left) if left else _UNKNOWN_TOKENS
        return left + [mean] * max(0, num_open - len(left))

    def _judging(self, view: ShiftView, left: Sequence[float], token_s: float) -> RoleWork:
        """Requests there are, and those of attempts that end before a worker could change over."""
        demand = view.demand(self._world.job, Role.GENRM)
        sequences = float(demand.waiting + demand.decoding)
        if self._looks_ahead:
            soon_s = self._world.seconds(Role.ROLLOUT, Role.GENRM)
            sequences += sum(tokens * token_s < soon_s for tokens in left)
        tokens = sequences * self._judgements.tokens
        return RoleWork(
            self._rate(view, Role.GENRM), sequences, tokens, self._num(view, Role.GENRM)
        )

    def _batch_s(
        self,
        training: TrainingView,
        works: Mapping[Role, RoleWork],
        left: Sequence[float],
        token_s: float,
    ) -> float:
        ready = training.accepted_groups - training.version * self._world.groups_per_step
        needed = self._world.groups_per_step - ready
        if needed <= 0:
            return 0.0
        seconds = 0.0
        if left:
            share = min(1.0, needed / max(1, training.running_groups))
            longest = sorted(left)[min(len(left) - 1, int(share * len(left)))]
            rollout = works[Role.ROLLOUT]
            drain_s = share * rollout.stock_s / max(1, rollout.num_workers)
            seconds = max(longest * token_s, drain_s)
        if Role.GENRM in works:
            seconds += works[Role.GENRM].stock_s / max(1, works[Role.GENRM].num_workers)
        return seconds

    def _rate(self, view: ShiftView, role: Role) -> RoleRate:
        members = view.serving(self._world.job, role)
        demand = view.demand(self._world.job, role)
        tokens = demand.waiting_tokens + sum(m.worker.running_tokens for m in members)
        number = demand.waiting + sum(m.worker.num_running for m in members)
        context = tokens / number if number else _UNKNOWN_CONTEXT
        return RoleRate(self._world.shapes[role], self._world.max_running, max(1.0, context))

    def _num(self, view: ShiftView, role: Role) -> int:
        job = self._world.job
        return len(view.serving(job, role)) + len(view.coming(job, role))
