"""Several jobs on one simulated fleet: who holds which slot when, and how soon all are done.

Coarser than the cluster: an attempt is a number of seconds that it needs of a seat, tools included,
and a slot seats `max_running` attempts of the job that holds it, whatever their number costs. A step
is a rollout, whose tail leaves slots without work, and then training on all slots that the job holds;
neither prompts nor memory are modelled. So figures speak of sharing, and of nothing else. A slot that changes
hands is out of service for `cold_s`, or for `warm_s` where the job's state is still kept there.

Between two changes everything goes on at constant rates, so time skips from change to change.
Training is not broken off: a slot that is asked for meanwhile is given back when the step is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Protocol

from scheduler.slices import Grant, Ruling, Slot, TakeBack

_DONE_S = 1e-9
"""Less than this is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step has to do."""

    attempts_s: tuple[float, ...]
    """That each attempt needs a seat for."""
    train_slot_s: float
    """Slot-seconds of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedJob:
    """One training run."""

    name: str
    batches: Sequence[Batch]
    """One a step."""
    max_running: int
    max_train_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFleet:
    num_slots: int
    cold_s: float
    """To load a job's state onto a slot ..."""
    warm_s: float
    """... and where it is still kept."""
    kept_states: int
    """Jobs whose state a slot keeps, the one that holds it included."""
    tick_s: float
    """A policy is asked at every change, and at least this often."""


class SharePolicy(Protocol):
    """Who gets which slot; `scheduler.slices.Slices` is one."""

    def want(self, t: float, job: str, wanted: int) -> None: ...

    def give_back(self, t: float, job: str, slot: Slot, *, is_parked: bool) -> None: ...

    def park(self, job: str, slot: Slot, *, is_parked: bool) -> None: ...

    def decide(self, t: float) -> Sequence[Ruling]: ...


@dataclass(slots=True)
class _Running:
    job: SharedJob
    step: int = -1
    open_s: list[float] = field(default_factory=list)
    """Seconds that each attempt of the step still needs; the first ones have seats."""
    train_left_s: float = 0.0
    slots: dict[Slot, float] = field(default_factory=dict)
    """Held, and from when on each is of use."""
    asked_for: int = 0
    ended_t: float = inf

    @property
    def is_training(self) -> bool:
        return not self.open_s and self.train_left_s > _DONE_S

    def wanted(self) -> int:
        if self.ended_t < inf:
            return 0
        if self.open_s:
            return ceil(len(self.open_s) / self.job.max_running)
        return self.job.max_train_slots

    def ready(self, t: float) -> int:
        number = sum(ready_t <= t + _DONE_S for ready_t in self.slots.values())
        return min(number, self.job.max_train_slots) if self.is_training else number

    def seated(self, t: float) -> int:
        return min(len(self.open_s), self.ready(t) * self.job.max_running)

    def begin_step(self, t: float) -> None:
        self.step += 1
        if self.step == len(self.job.batches):
            self.ended_t = t
            return
        batch = self.job.batches[self.step]
        self.open_s, self.train_left_s = list(batch.attempts_s), batch.train_slot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResult:
    ended_s: dict[str, float]
    """When each job was done."""
    bubble: float
    """Share of all slots' time, until the last job was done, without work of any job."""
    switches: int
    """Times that a slot changed hands ..."""
    cold_switches: int
    """... and the state had to be loaded."""

    @property
    def makespan_s(self) -> float:
        return max(self.ended_s.values())


class SharedFleetRun:
    """`play()` once."""

    def __init__(
        self, fleet: SharedFleet, jobs: Sequence[SharedJob], policy: SharePolicy, *, lends: bool
    ) -> None:
        """`lends`: whether jobs give back slots that they have no work for."""
        self._fleet = fleet
        self._policy = policy
        self._lends = lends
        self._jobs = {job.name: _Running(job) for job in jobs}
        self._kept: dict[Slot, deque[str]] = {}
        """Jobs whose state lies on a slot, the newest last."""
        self._t = 0.0
        self._busy_s = 0.0
        self._switches = self._cold = 0

    def play(self) -> ShareResult:
        for running in self._jobs.values():
            running.begin_step(self._t)
        while any(running.ended_t == inf for running in self._jobs.values()):
            self._share()
            self._advance(self._until_change())
        ended = {name: running.ended_t for name, running in self._jobs.items()}
        total_s = self._fleet.num_slots * max(ended.values())
        return ShareResult(
            ended_s=ended,
            bubble=1.0 - self._busy_s / total_s,
            switches=self._switches,
            cold_switches=self._cold,
        )

    # -------------------------------------------------------------------------------- sharing

    def _share(self) -> None:
        for name, running in self._jobs.items():
            self._policy.want(self._t, name, running.wanted())
            self._return(running)
        for ruling in self._policy.decide(self._t):
            match ruling:
                case Grant():
                    self._granted(ruling)
                case TakeBack():
                    self._jobs[ruling.job].asked_for += 1
                    self._return(self._jobs[ruling.job])

    def _return(self, running: _Running) -> None:
        """What was asked for, and what there is no work for."""
        if running.is_training:
            return
        surplus = len(running.slots) - running.wanted() if self._lends else 0
        number = len(running.slots) if running.ended_t < inf else max(surplus, running.asked_for)
        running.asked_for = 0
        for slot in sorted(running.slots)[::-1][:number]:
            del running.slots[slot]
            name = running.job.name
            self._policy.give_back(self._t, name, slot, is_parked=running.ended_t == inf)

    def _granted(self, grant: Grant) -> None:
        kept = self._kept.setdefault(grant.slot, deque())
        is_warm = grant.job in kept
        self._switches += 1
        self._cold += not is_warm
        if is_warm:
            kept.remove(grant.job)
        kept.append(grant.job)
        while len(kept) > self._fleet.kept_states:
            self._policy.park(kept.popleft(), grant.slot, is_parked=False)
        seconds = self._fleet.warm_s if is_warm else self._fleet.cold_s
        self._jobs[grant.job].slots[grant.slot] = self._t + seconds

    # ----------------------------------------------------------------------------------- time

    def _until_change(self) -> float:
        changes = [self._fleet.tick_s]
        for running in self._jobs.values():
            changes += [at - self._t for at in running.slots.values() if at > self._t + _DONE_S]
            changes += running.open_s[: running.seated(self._t)]
            if running.is_training and running.ready(self._t):
                changes.append(running.train_left_s / running.ready(self._t))
        return min(changes)

    def _advance(self, seconds: float) -> None:
        for running in self._jobs.values():
            ready, seated = running.ready(self._t), running.seated(self._t)
            if running.is_training:
                self._busy_s += min(ready * seconds, running.train_left_s)
                running.train_left_s -= ready * seconds
            elif seated:
                self._busy_s += ceil(seated / running.job.max_running) * seconds
                moved = [left_s - seconds for left_s in running.open_s[:seated]]
                rest = running.open_s[seated:]
                running.open_s = [left_s for left_s in moved if left_s > _DONE_S] + rest
        self._t += seconds
        for running in self._jobs.values():
            if running.ended_t == inf and not running.open_s and not running.is_training:
                running.begin_step(self._t)
