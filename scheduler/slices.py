"""Time slices of a fleet that several jobs share: who holds which slot, and who gives one back.

A slot is an accelerator, or a core, that one worker works on. Each job has a weight and says how
many slots it wants, and with how few it can work at all. What the jobs use together is credited to
them by weight; the difference to what a job used itself is its deficit, and slots go where the
deficit is largest. So jobs that share evenly keep their slots, and where that does not come out
even, slots go back and forth. A job gets slots back where its state is parked, if it can.

It is asked for a slot by `TakeBack`, and holds it until it says that it let go (`give_back`) or is
known to be dead (`leave`): an unknown outcome keeps the lease. Holding on costs the job its credit.

Invariants
- A slot has at most one holder.
- A job is asked for nothing within `slice_s` of having begun to work with its last grant, so each
  gets something done, however long its workers take to start.
- No slot is free while a job wants it, but those that are kept for one that needs several at once.
- Slots of a job that is idle, or that never could work here, are credited to nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

Slot = str
_EQUAL = 1e-9
"""Shares that differ by less are the same; sums of slot-seconds carry rounding errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """What a job asks for."""

    job: str
    weight: float = 1.0
    wanted: int
    """Slots that it can use now; 0: none for the time being."""
    at_least: int = 1
    """With fewer it cannot work: it gets so many or none."""
    slice_s: float
    """For this long after it has begun with a grant it is asked for nothing."""

    def __post_init__(self) -> None:
        assert self.weight > 0, self.weight
        assert self.at_least >= 1, self.at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The job may use the slot from now on."""

    job: str
    slot: Slot
    is_warm: bool
    """Its state is parked there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBack:
    """The job is to give back this slot, or another one, until then."""

    job: str
    slot: Slot
    deadline_t: float


Ruling = Grant | TakeBack


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """How a job fares."""

    tenant: Tenant
    held: tuple[Slot, ...]
    used_s: float
    """Slot-seconds."""
    deficit_s: float
    """Slot-seconds that it should have used beside the others, less those it used."""


@dataclass(slots=True)
class _RunningAccount:
    tenant: Tenant
    used_s: float = 0.0
    deficit_s: float = 0.0
    slice_from_t: float = float("-inf")
    """When it began to work with its last grant, or must have."""
    held: set[Slot] = field(default_factory=set)
    asked_for: dict[Slot, float] = field(default_factory=dict)
    """Slots it was asked for, by deadline."""
    parked: set[Slot] = field(default_factory=set)

    @property
    def staying(self) -> int:
        return len(self.held) - len(self.asked_for)


class Slices:
    """Every method takes the time, which never falls; `decide` says what follows."""

    def __init__(self, *, grace_s: float, start_s: float = 0.0) -> None:
        """`grace_s`: how long a job has to let go of a slot; `start_s`: and, at most, to begin to
        work with one, unless it says earlier that it has."""
        self._grace_s = grace_s
        self._start_s = start_s
        self._slots: set[Slot] = set()
        self._accounts: dict[str, _RunningAccount] = {}
        self._t = float("-inf")

    # ---------------------------------------------------------------------- slots come and go

    def add_slots(self, t: float, slots: Iterable[Slot]) -> None:
        self._settle_accounts(t)
        self._slots.update(slots)

    def remove_slots(self, t: float, slots: Collection[Slot]) -> None:
        """They are gone, with whatever ran or was parked there."""
        self._settle_accounts(t)
        self._slots.difference_update(slots)
        for account in self._accounts.values():
            account.held.difference_update(slots)
            account.parked.difference_update(slots)
            for slot in slots:
                account.asked_for.pop(slot, None)

    # ----------------------------------------------------------------------- jobs come and go

    def join(self, t: float, tenant: Tenant, *, held: Iterable[Slot] = ()) -> list[Slot]:
        """A job begins, or says again what it wants and holds after the books, or something that
        it said, may have been lost. What it does not hold any more it has given back.

        Returns those slots of `held` that it cannot have: they are gone, or somebody else's.
        """
        self._settle_accounts(t)
        held = list(held)
        account = self._accounts.setdefault(tenant.job, _RunningAccount(tenant))
        account.tenant = tenant
        for slot in sorted(account.held.difference(held)):
            self.give_back(t, tenant.job, slot, is_parked=False)
        free = self._free()
        refused = []
        for slot in held:
            if slot in free:
                account.held.add(slot)
            elif slot not in account.held:
                refused.append(slot)
        return refused

    def want(self, t: float, job: str, wanted: int) -> None:
        self._settle_accounts(t)
        account = self._accounts[job]
        old = account.tenant
        account.tenant = Tenant(
            job=job,
            weight=old.weight,
            wanted=wanted,
            at_least=old.at_least,
            slice_s=old.slice_s,
        )

    def begun(self, t: float, job: str) -> None:
        """The job works with all that it holds."""
        account = self._accounts[job]
        account.slice_from_t = min(account.slice_from_t, t)

    def give_back(self, t: float, job: str, slot: Slot, *, is_parked: bool) -> None:
        """The job does not use the slot any more. `is_parked`: its state waits there."""
        self._settle_accounts(t)
        account = self._accounts[job]
        if slot not in account.held:
            return
        account.held.remove(slot)
        if slot in account.asked_for:
            del account.asked_for[slot]
        elif account.asked_for:
            account.asked_for.popitem()
        self.park(job, slot, is_parked=is_parked)

    def park(self, job: str, slot: Slot, *, is_parked: bool) -> None:
        """Whether state of the job waits at a slot that it does not hold."""
        parked = self._accounts[job].parked
        if is_parked:
            parked.add(slot)
        else:
            parked.discard(slot)

    def leave(self, t: float, job: str) -> None:
        """The job has ended, or is dead with all its workers."""
        self._settle_accounts(t)
        self._accounts.pop(job, None)

    # ------------------------------------------------------------------------------- decisions

    def decide(self, t: float) -> tuple[Ruling, ...]:
        """What changes now. Grants hold at once; each slot is asked for once."""
        self._settle_accounts(t)
        targets = self._targets()
        return (*self._grant(t, targets), *self._take_back(t, targets))

    def overdue(self, t: float) -> list[TakeBack]:
        """Slots that should have been given back by now."""
        return [
            TakeBack(job=account.tenant.job, slot=slot, deadline_t=deadline_t)
            for account in self._accounts.values()
            for slot, deadline_t in sorted(account.asked_for.items())
            if deadline_t < t
        ]

    def accounts(self, t: float) -> list[Account]:
        self._settle_accounts(t)
        return [
            Account(
                tenant=account.tenant,
                held=tuple(sorted(account.held)),
                used_s=account.used_s,
                deficit_s=account.deficit_s,
            )
            for account in self._accounts.values()
        ]

    @property
    def slots(self) -> frozenset[Slot]:
        return frozenset(self._slots)

    # ---------------------------------------------------------------------------------- parts

    def _grant(self, t: float, targets: dict[str, int]) -> Iterator[Grant]:
        free = self._free()
        while free:
            lacking = [
                account
                for account in self._accounts.values()
                if len(account.held) < targets[account.tenant.job]
                and len(account.held) + len(free) >= account.tenant.at_least
            ]
            if not lacking:
                return
            account = max(lacking, key=lambda a: targets[a.tenant.job] - len(a.held))
            slot = self._best_for(account, free)
            is_warm = slot in account.parked
            free.remove(slot)
            account.parked.discard(slot)
            account.held.add(slot)
            account.slice_from_t = t + self._start_s
            yield Grant(job=account.tenant.job, slot=slot, is_warm=is_warm)

    def _best_for(self, account: _RunningAccount, free: set[Slot]) -> Slot:
        """Where its state is parked, else where nobody's is."""
        others = {slot for a in self._accounts.values() if a is not account for slot in a.parked}
        return min(free, key=lambda slot: (slot not in account.parked, slot in others, slot))

    def _take_back(self, t: float, targets: dict[str, int]) -> Iterator[TakeBack]:
        """As many as the others lack and are not on their way to them."""
        accounts = self._accounts.values()
        lack = sum(max(0, targets[a.tenant.job] - len(a.held)) for a in accounts)
        lack -= sum(len(a.asked_for) for a in accounts)
        waiting_for = {
            slot for a in accounts if len(a.held) < targets[a.tenant.job] for slot in a.parked
        }
        for account in sorted(accounts, key=lambda a: a.deficit_s):
            surplus = account.staying - targets[account.tenant.job]
            if t - account.slice_from_t < account.tenant.slice_s:
                continue
            staying = account.held - account.asked_for.keys()
            by_worth = sorted(staying, key=lambda slot: (slot not in waiting_for, slot))
            for slot in by_worth[: max(0, min(surplus, lack))]:
                lack -= 1
                account.asked_for[slot] = t + self._grace_s
                yield TakeBack(job=account.tenant.job, slot=slot, deadline_t=t + self._grace_s)

    def _targets(self) -> dict[str, int]:
        """Slots by job: one at a time to whoever is furthest below its share and its deficit."""
        shares = self._shares()
        horizon_s = max((a.tenant.slice_s for a in self._accounts.values()), default=1.0)
        due = {
            job: share + self._accounts[job].deficit_s / horizon_s for job, share in shares.items()
        }
        targets = dict.fromkeys(self._accounts, 0)
        num_left = len(self._slots)
        while True:
            steps = {
                job: self._accounts[job].tenant.at_least if targets[job] == 0 else 1
                for job in shares
                if targets[job] < self._accounts[job].tenant.wanted
            }
            fitting = [job for job, step in steps.items() if step <= num_left]
            if not fitting:
                return targets
            most = max(due[job] - targets[job] for job in fitting)
            equal = [job for job in fitting if due[job] - targets[job] > most - _EQUAL]
            job = max(equal, key=lambda job: len(self._accounts[job].held) > targets[job])
            targets[job] += steps[job]
            num_left -= steps[job]

    def _shares(self) -> dict[str, float]:
        """Slots by job if they could be cut: by weight, and no more than a job wants."""
        able = {
            job: account.tenant
            for job, account in self._accounts.items()
            if 0 < account.tenant.at_least <= min(account.tenant.wanted, len(self._slots))
        }
        shares: dict[str, float] = {}
        left = float(len(self._slots))
        while able:
            per_weight = left / sum(tenant.weight for tenant in able.values())
            full = {j: x for j, x in able.items() if x.wanted <= x.weight * per_weight + _EQUAL}
            if not full:
                return shares | {job: x.weight * per_weight for job, x in able.items()}
            for job, tenant in full.items():
                shares[job] = float(tenant.wanted)
                left -= tenant.wanted
                del able[job]
        return shares

    def _settle_accounts(self, t: float) -> None:
        """Credit what was used since the last time to all by their shares."""
        assert t >= self._t, f"time {t} after {self._t}"
        seconds, self._t = t - self._t, t
        if not self._accounts or seconds == float("inf"):
            return
        shares = self._shares()
        used = seconds * sum(len(account.held) for account in self._accounts.values())
        total = sum(shares.values())
        for job, account in self._accounts.items():
            own = seconds * len(account.held)
            account.used_s += own
            account.deficit_s -= own
            if job in shares:
                account.deficit_s += used * shares[job] / total
            elif not account.held:
                account.deficit_s = min(account.deficit_s, 0.0)  # who rests saves nothing up

    def _free(self) -> set[Slot]:
        held = {slot for account in self._accounts.values() for slot in account.held}
        return self._slots - held
