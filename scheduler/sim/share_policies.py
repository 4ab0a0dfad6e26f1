"""Rivals of affinity-aware slices: a fixed partition of the fleet, and strict turns over all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.slices import Grant, Ruling, Slot, TakeBack


class Partition:
    """Every job has its own slots, from the start until it is done."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        self._numbers = dict(slots)
        self._is_granted = False

    def want(self, t: float, job: str, wanted: int) -> None:
        pass

    def give_back(self, t: float, job: str, slot: Slot, *, is_parked: bool) -> None:
        pass

    def park(self, job: str, slot: Slot, *, is_parked: bool) -> None:
        pass

    def decide(self, t: float) -> Sequence[Ruling]:
        if self._is_granted:
            return ()
        self._is_granted = True
        owners = [job for job, number in self._numbers.items() for _ in range(number)]
        return [Grant(job=job, slot=f"s{i:02}", is_warm=False) for i, job in enumerate(owners)]


class StrictTurns:
    """The whole fleet goes to one job after the other, for `slice_s` each, whether it has use for it
    or not; jobs that are done are left out."""

    def __init__(self, num_slots: int, jobs: Sequence[str], slice_s: float) -> None:
        self._slots = [f"s{i:02}" for i in range(num_slots)]
        self._jobs = list(jobs)
        self._slice_s = slice_s
        self._turn = 0
        self._until_t = slice_s
        self._holders: dict[Slot, str] = {}
        self._asked: set[Slot] = set()

    def want(self, t: float, job: str, wanted: int) -> None:
        if wanted == 0 and job in self._jobs:
            at = self._jobs.index(job)
            self._jobs.remove(job)
            if at < self._turn:
                self._turn -= 1
            elif at == self._turn:
                self._until_t = t + self._slice_s
            self._turn = self._turn % max(1, len(self._jobs))

    def give_back(self, t: float, job: str, slot: Slot, *, is_parked: bool) -> None:
        self._holders.pop(slot, None)
        self._asked.discard(slot)

    def park(self, job: str, slot: Slot, *, is_parked: bool) -> None:
        pass

    def decide(self, t: float) -> Sequence[Ruling]:
        if not self._jobs:
            return ()
        if t >= self._until_t - 1e-9:
            self._turn = (self._turn + 1) % len(self._jobs)
            self._until_t = t + self._slice_s
        job = self._jobs[self._turn]
        free = [slot for slot in self._slots if slot not in self._holders]
        rulings: list[Ruling] = [Grant(job=job, slot=slot, is_warm=False) for slot in free]
        for slot, holder in self._holders.items():
            if holder != job and slot not in self._asked:
                self._asked.add(slot)
                rulings.append(TakeBack(job=holder, slot=slot, deadline_t=t))
        self._holders |= dict.fromkeys(free, job)
        return rulings
