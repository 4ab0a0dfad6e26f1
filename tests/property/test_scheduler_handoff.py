"""Random plans, cancels, time-outs, silence and deaths: leases stay sound, every handoff ends."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.decisions import Duty, HandoffEnded, HandoffOrder, Shift
from scheduler.events import Role
from scheduler.handoff import DEADLINES_S, Answer, HandoffBook

LONGEST_S = sum(DEADLINES_S.values())
"""No handoff may take longer."""


class Drill:
    """A driver that carries out orders late, twice, or never."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.t = 0.0
        self.book = HandoffBook()
        self.mail: list[tuple[float, HandoffOrder]] = []
        self.began: dict[str, float] = {}
        self.ended = 0
        self.accelerators = [f"gpu{i}" for i in range(self.rng.randint(2, 6))]
        for i, name in enumerate(self.accelerators):
            duty = Duty(role=Role.ROLLOUT, accelerators=frozenset({name}))
            self.book.join(f"w{i}", 0, duty)

    def take(self, answers: list[Answer]) -> None:
        for answer in answers:
            match answer:
                case HandoffOrder():
                    self.began.setdefault(answer.worker_id, self.t)
                    if self.rng.random() < 0.9:
                        delay = self.rng.expovariate(1 / 30)
                        self.mail.append((self.t + delay, answer))
                        if self.rng.random() < 0.1:
                            self.mail.append((self.t + 2 * delay, answer))
                case Shift():
                    pass
                case HandoffEnded():
                    began = self.began.pop(answer.worker_id)
                    assert self.t - began <= LONGEST_S + 1.0
                    self.ended += 1

    def step(self, may_begin: bool) -> None:
        self.t += 1.0
        self.take(self.book.tick(self.t))
        due = [mail for mail in self.mail if mail[0] <= self.t]
        self.mail = [mail for mail in self.mail if mail[0] > self.t]
        for _, order in due:
            self.take(
                self.book.done(
                    self.t, order.worker_id, order.generation, order.stage, order.version
                )
            )
        if may_begin:
            self.disturb()
        self.check()

    def disturb(self) -> None:
        worker_id = f"w{self.rng.randrange(len(self.accelerators))}"
        draw = self.rng.random()
        if draw < 0.10:
            self.begin_something()
        elif draw < 0.13:
            self.take(self.book.cancel(self.t, worker_id))
        elif draw < 0.135:
            self.take(self.book.worker_lost(self.t, worker_id))
        elif draw < 0.15:
            self.book.published("main", int(self.t))

    def begin_something(self) -> None:
        workers = self.rng.sample(range(len(self.accelerators)), k=self.rng.randint(1, 3) % 3 + 1
                                  if len(self.accelerators) > 2 else 1)  # fmt: skip
        free = self.rng.sample(self.accelerators, k=len(self.accelerators))
        moves = {
            f"w{i}": Duty(
                role=self.rng.choice(list(Role)),
                accelerators=frozenset(free.pop() for _ in range(self.rng.randint(0, 1))),
            )
            for i in workers
        }
        if self.book.refusal(moves) is None:
            self.take(self.book.begin(self.t, moves))

    def check(self) -> None:
        owned = [
            name
            for i in range(len(self.accelerators))
            for name in self.book.leases.held_by(f"w{i}")
        ]
        assert len(owned) == len(set(owned))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_every_handoff_ends_and_accelerators_have_one_owner(seed: int) -> None:
    drill = Drill(seed)
    for _ in range(600):
        drill.step(may_begin=True)
    for _ in range(int(2 * LONGEST_S) + 2):
        drill.step(may_begin=False)
    assert drill.book.num_open == 0
    assert drill.began == {}


def test_drill_really_ends_handoffs() -> None:
    ended = 0
    for seed in range(10):
        drill = Drill(seed)
        for _ in range(600):
            drill.step(may_begin=True)
        ended += drill.ended
    assert ended > 50
