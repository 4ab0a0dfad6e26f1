"""Time slices of a shared fleet: fair over time, one holder a slot, back to where state lies."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.slices import Grant, Slices, TakeBack, Tenant

GRACE_S = 2.0
TICK_S = 1.0


class Fleet:
    """Jobs that let go of what they are asked for, some time before its deadline."""

    def __init__(self, num_slots: int, tenants: list[Tenant], seed: int = 0) -> None:
        self.slices = Slices(grace_s=GRACE_S)
        self.rng = random.Random(seed)
        self.t = 0.0
        self.slices.add_slots(0.0, [f"slot{n}" for n in range(num_slots)])
        self.leaving: list[tuple[float, str, str]] = []
        self.granted_t: dict[str, float] = defaultdict(lambda: float("-inf"))
        self.tenants = {tenant.job: tenant for tenant in tenants}
        self.rulings: list[Grant | TakeBack] = []
        for tenant in tenants:
            self.slices.join(0.0, tenant)

    def run(self, seconds: float) -> None:
        end = self.t + seconds
        while self.t < end:
            self.tick()
            self.t += TICK_S

    def tick(self) -> None:
        due = [entry for entry in self.leaving if entry[0] <= self.t]
        self.leaving = [entry for entry in self.leaving if entry[0] > self.t]
        for _, job, slot in due:
            if job in self.tenants:
                self.slices.give_back(self.t, job, slot, is_parked=True)
        for ruling in self.slices.decide(self.t):
            self.rulings.append(ruling)
            match ruling:
                case Grant():
                    self.granted_t[ruling.job] = self.t
                case TakeBack():
                    since = self.t - self.granted_t[ruling.job]
                    assert since >= self.tenants[ruling.job].slice_s
                    leaves_t = self.t + self.rng.uniform(0, GRACE_S)
                    self.leaving.append((leaves_t, ruling.job, ruling.slot))
        self.check()

    def check(self) -> None:
        holders = [slot for account in self.slices.accounts(self.t) for slot in account.held]
        assert len(holders) == len(set(holders))
        assert self.slices.overdue(self.t) == []
        num_free = len(self.slices.slots) - len(holders)
        lacking = [
            account.tenant
            for account in self.slices.accounts(self.t)
            if len(account.held) < account.tenant.wanted >= account.tenant.at_least
        ]
        if lacking and not self.leaving:
            assert num_free < max(tenant.at_least for tenant in lacking)

    def used(self) -> dict[str, float]:
        return {s.tenant.job: s.used_s for s in self.slices.accounts(self.t)}

    def held(self) -> dict[str, int]:
        return {s.tenant.job: len(s.held) for s in self.slices.accounts(self.t)}


def tenant(job: str, wanted: int, *, weight: float = 1.0, at_least: int = 1) -> Tenant:
    return Tenant(job=job, weight=weight, wanted=wanted, at_least=at_least, slice_s=10.0)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 8),
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=4),
    st.integers(0, 10**6),
)
def test_used_slot_seconds_follow_the_weights(
    num_slots: int, weights: list[float], seed: int
) -> None:
    """Whoever always wants all gets its share, whatever the time, within a bound."""
    jobs = [tenant(f"job{n}", num_slots, weight=weight) for n, weight in enumerate(weights)]
    fleet = Fleet(num_slots, jobs, seed)
    bound_s = (num_slots + len(jobs)) * (10.0 + GRACE_S + TICK_S)
    for _ in range(20):
        fleet.run(30)
        used = fleet.used()
        for job in jobs:
            fair_s = sum(used.values()) * job.weight / sum(weights)
            assert abs(used[job.job] - fair_s) <= bound_s, (used, fleet.t)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=4),
    st.integers(0, 10**6),
)
def test_nobody_starves_who_needs_several_slots_at_once(
    num_slots: int, needs: list[tuple[int, int]], seed: int
) -> None:
    jobs = [
        tenant(f"job{n}", max(wanted, at_least), at_least=at_least)
        for n, (wanted, at_least) in enumerate(needs)
    ]
    fleet = Fleet(num_slots, jobs, seed)
    fleet.run(200)
    before = fleet.used()
    fleet.run(300)
    for job in jobs:
        is_able = job.at_least <= num_slots
        assert (fleet.used()[job.job] > before[job.job]) == is_able


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_books_stay_whole_while_jobs_and_slots_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    fleet = Fleet(4, [tenant("job0", 3)], seed)
    for number in range(1, 60):
        fleet.run(rng.choice([1, 5, 15]))
        match rng.randrange(5):
            case 0:
                job = tenant(f"job{number}", rng.randint(1, 4), at_least=rng.randint(1, 2))
                fleet.tenants[job.job] = job
                fleet.slices.join(fleet.t, job)
            case 1 if fleet.tenants:
                name = rng.choice(sorted(fleet.tenants))
                del fleet.tenants[name]
                fleet.slices.leave(fleet.t, name)
                fleet.leaving = [entry for entry in fleet.leaving if entry[1] != name]
            case 2:
                fleet.slices.add_slots(fleet.t, [f"slot{rng.randrange(6)}"])
            case 3:
                gone = f"slot{rng.randrange(6)}"
                fleet.slices.remove_slots(fleet.t, [gone])
                fleet.leaving = [entry for entry in fleet.leaving if entry[2] != gone]
            case _ if fleet.tenants:
                name = rng.choice(sorted(fleet.tenants))
                fleet.slices.want(fleet.t, name, rng.randint(0, 4))
    assert sum(fleet.held().values()) <= len(fleet.slices.slots)


def test_equal_jobs_that_come_out_even_keep_their_slots() -> None:
    fleet = Fleet(4, [tenant("a", 4), tenant("b", 4)])
    fleet.run(1000)
    assert fleet.held() == {"a": 2, "b": 2}
    assert len(fleet.rulings) == 4


def test_one_slot_goes_back_and_forth_by_weight() -> None:
    fleet = Fleet(1, [tenant("a", 1, weight=3.0), tenant("b", 1)])
    fleet.run(4000)
    used = fleet.used()
    assert used["a"] / used["b"] == pytest.approx(3.0, rel=0.05)
    grants = sum(isinstance(ruling, Grant) for ruling in fleet.rulings)
    assert grants <= 4000 / 10.0


def test_jobs_that_need_two_slots_take_turns_with_both() -> None:
    fleet = Fleet(2, [tenant("a", 2, at_least=2), tenant("b", 2, at_least=2)])
    seen = set()
    for _ in range(200):
        fleet.run(TICK_S)
        seen.add(tuple(fleet.held().values()))
    assert {(2, 0), (0, 2)} <= seen
    assert (1, 1) not in seen


def test_a_job_comes_back_to_where_its_state_is_parked() -> None:
    fleet = Fleet(3, [tenant("a", 3, at_least=3), tenant("b", 2, at_least=2)])
    fleet.run(300)
    grants = [ruling for ruling in fleet.rulings if isinstance(ruling, Grant)]
    of_a, of_b = ([g for g in grants if g.job == job] for job in ("a", "b"))
    assert not any(grant.is_warm for grant in [*of_a[:3], *of_b[:2]])
    assert len(of_a) > 6
    assert len(of_b) > 4
    assert all(grant.is_warm for grant in [*of_a[3:], *of_b[2:]])


def test_a_newcomer_gets_its_share_at_once_and_none_for_the_past() -> None:
    fleet = Fleet(2, [tenant("a", 2)])
    fleet.run(500)
    late = tenant("b", 2)
    fleet.tenants["b"] = late
    fleet.slices.join(fleet.t, late)
    fleet.run(2 * GRACE_S)
    assert fleet.held() == {"a": 1, "b": 1}
    fleet.run(500)
    assert fleet.held() == {"a": 1, "b": 1}


def test_slots_of_the_dead_go_to_the_living() -> None:
    fleet = Fleet(2, [tenant("a", 2), tenant("b", 2)])
    fleet.run(50)
    del fleet.tenants["a"]
    fleet.slices.leave(fleet.t, "a")
    fleet.run(TICK_S)
    assert fleet.held() == {"b": 2}


def test_who_holds_on_pays_for_it() -> None:
    """A job that cannot let go for a while is asked once, keeps the slot, and makes up for it."""
    slices = Slices(grace_s=GRACE_S)
    slices.add_slots(0.0, ["slot"])
    slices.join(0.0, tenant("a", 1))
    slices.join(0.0, tenant("b", 1))
    (grant,) = slices.decide(0.0)
    assert grant == Grant(job="a", slot="slot", is_warm=False)
    (asked,) = slices.decide(11.0)
    assert asked == TakeBack(job="a", slot="slot", deadline_t=13.0)
    assert slices.decide(40.0) == ()
    assert slices.overdue(40.0) == [asked]
    slices.give_back(40.0, "a", "slot", is_parked=False)
    (grant,) = slices.decide(40.0)
    assert grant.job == "b"
    assert slices.decide(70.0) == ()
    (asked,) = slices.decide(81.0)
    assert asked.job == "b"


def test_jobs_declare_what_they_hold_after_the_books_were_lost() -> None:
    before = Fleet(3, [tenant("a", 3), tenant("b", 3)])
    before.run(50)
    held = {s.tenant.job: s.held for s in before.slices.accounts(before.t)}
    slices = Slices(grace_s=GRACE_S)
    slices.add_slots(0.0, before.slices.slots)
    for name in ("b", "a"):
        assert slices.join(0.0, tenant(name, 3), held=held[name]) == []
    slices.decide(0.0)
    assert {s.tenant.job: s.held for s in slices.accounts(0.0)} == held
    assert slices.join(0.0, tenant("c", 3), held=[*held["a"], "gone"]) == [*held["a"], "gone"]


def test_what_a_job_does_not_declare_any_more_is_free_and_was_given_back() -> None:
    slices = Slices(grace_s=GRACE_S)
    slices.add_slots(0.0, ["slot0", "slot1"])
    slices.join(0.0, tenant("a", 2))
    slices.decide(0.0)
    slices.join(20.0, tenant("b", 1))
    (asked,) = slices.decide(20.0)
    (kept,) = {"slot0", "slot1"} - {asked.slot}
    assert slices.join(21.0, tenant("a", 2), held=[asked.slot]) == []
    assert slices.decide(21.0) == (Grant(job="b", slot=kept, is_warm=False),)
    assert slices.overdue(1000.0) == []


def test_equal_calls_give_equal_rulings() -> None:
    def rulings() -> list[Grant | TakeBack]:
        fleet = Fleet(5, [tenant("a", 5), tenant("b", 4, weight=2.0), tenant("c", 2, at_least=2)])
        fleet.run(500)
        return fleet.rulings

    assert rulings() == rulings()


def test_a_slice_begins_when_the_job_is_at_work_and_not_while_it_starts() -> None:
    slices = Slices(grace_s=GRACE_S, start_s=100.0)
    slices.add_slots(0.0, ["slot0"])
    for job in (tenant("slow", 1), tenant("other", 1)):
        slices.join(0.0, job)
    (first,) = slices.decide(0.0)
    assert isinstance(first, Grant)
    assert slices.decide(60.0) == ()
    slices.begun(60.0, first.job)
    assert slices.decide(69.0) == ()
    (asked,) = slices.decide(70.0)
    assert isinstance(asked, TakeBack)
    assert asked.job == first.job


def test_a_job_that_never_begins_does_not_keep_its_slot() -> None:
    slices = Slices(grace_s=GRACE_S, start_s=100.0)
    slices.add_slots(0.0, ["slot0"])
    for job in (tenant("stuck", 1), tenant("other", 1)):
        slices.join(0.0, job)
    slices.decide(0.0)
    assert slices.decide(109.0) == ()
    assert len(slices.decide(110.0)) == 1
