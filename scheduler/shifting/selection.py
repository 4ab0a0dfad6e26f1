"""Which workers move when a policy has decided how many: shared by all policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler.calibration import Calibration
from scheduler.costs import Shape, TrainCost
from scheduler.decisions import Duty
from scheduler.events import Role
from scheduler.policies import ShiftPlan
from scheduler.views import Member, ShiftView

_USUAL_S = 5.0
"""Out of service, where nothing is said: what a swap of an inference model takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftWorld:
    """What every policy may know of the job it shifts workers for."""

    job: str = "main"
    shapes: Mapping[Role, Shape]
    """What a worker costs as rollout and, where there is a reward model, as GenRM."""
    buckets: Mapping[Role, str]
    """The bucket a worker joins in each role."""
    max_running: int
    groups_per_step: int
    max_staleness: int = 0
    """With 0 nothing is served while a step runs; otherwise serving and training overlap."""
    training: TrainCost
    training_sizes: tuple[int, ...] = ()
    """Numbers of workers that can train together; empty: any."""
    may_train: frozenset[str] = frozenset()
    """Workers that can be asked to train, such as those that nobody takes away; empty: all."""
    shift_s: Mapping[tuple[Role, Role], float] = field(default_factory=dict)
    """Expected seconds out of service, from one role to another."""
    calibration: Calibration | None = None
    """What training and handoffs have really taken; None: they are taken as told."""
    longest_context_tokens: int = 0
    """A role whose memory does not hold one such context is never offered."""

    @property
    def has_judge(self) -> bool:
        return Role.GENRM in self.shapes

    def seconds(self, source: Role, target: Role) -> float:
        """Expected out of service, from one role to another."""
        learned = self.calibration and self.calibration.shift_s(source, target)
        return learned or self.shift_s.get((source, target), _USUAL_S)

    def train_s(self, tokens: float, num_workers: int) -> float:
        """Expected of an optimizer step."""
        scale = self.calibration.train_scale if self.calibration else 1.0
        return scale * self.training.seconds(tokens, num_workers)

    def fits(self, role: Role) -> bool:
        if role is Role.TRAINING:
            return True
        return self.shapes[role].kv_tokens >= self.longest_context_tokens

    def valid_size(self, num_workers: int) -> int:
        """The largest number of training workers that is not more than this."""
        if not self.training_sizes:
            return num_workers
        return max((size for size in self.training_sizes if size <= num_workers), default=0)

    def duty(self, member: Member, role: Role) -> Duty:
        return replace(member.duty, role=role, bucket=self.buckets[role])

    def plan(self, members: Iterable[Member], role: Role) -> ShiftPlan | None:
        """All of these to one role; None when there is nothing to move or no room for its model."""
        moves = {m.worker.worker_id: self.duty(m, role) for m in members if m.duty.role is not role}
        return ShiftPlan(moves=moves) if moves and self.fits(role) else None


def recruits(
    view: ShiftView, world: ShiftWorld, *, immunity_s: float = 0.0, keep: int = 0
) -> list[Member]:
    """Serving workers that may train, those with the least to requeue first; `keep` of each role,
    those with the most, are left out."""
    serving: list[Member] = []
    for role in (Role.GENRM, Role.ROLLOUT):
        most = max(0, len(view.serving(world.job, role)) - keep)
        serving += idlest(view, world.job, role, immunity_s=immunity_s)[:most]
    allowed = [m for m in serving if not world.may_train or m.worker.worker_id in world.may_train]
    return sorted(allowed, key=lambda member: member.worker.running_tokens)


def idlest(view: ShiftView, job: str, role: Role, *, immunity_s: float = 0.0) -> Sequence[Member]:
    """Workers of a role that have served for a while, those with the least to requeue first.

    Where the role has no work, they need not have: immunity keeps work from being moved about, and
    there is none to move.
    """
    if role is not Role.TRAINING and not view.demand(job, role).total:
        immunity_s = 0.0
    serving = [m for m in view.serving(job, role) if view.t - m.since_t >= immunity_s]
    return sorted(serving, key=lambda member: member.worker.running_tokens)
