from collections import deque

import pytest
from structlog.testing import capture_logs

from agentrl.record.journal import JournaledAttempt
from agentrl.rollout.attempt import Attempt
from agentrl.runtime.outages import OutageGate
from agentrl.types import Outcome, Task, Trajectory

SEATS = 16
TICK_S = 0.25


class Site:
    """A gate before runners that hold a few attempts, each of which takes a while on a clock of
    ours. While the infrastructure is down an attempt fails as soon as it begins, and so does always
    one in `flaky`."""

    def __init__(self, *, attempt_s: float = 20.0, longest_pause_s: float = 30.0) -> None:
        self.now = 0.0
        self.gate = OutageGate(self.begin, clock=lambda: self.now, longest_pause_s=longest_pause_s)
        self.is_down = False
        self.flaky = 10**9
        self.attempt_s = attempt_s
        self.running: deque[tuple[Attempt, float]] = deque()
        self.doomed: set[str] = set()
        self.begun: list[tuple[str, float]] = []
        self.ended: dict[Outcome, int] = {Outcome.FINISHED: 0, Outcome.INFRA_ERROR: 0}
        self.serial = 0

    def begin(self, attempt: Attempt, past: JournaledAttempt | None) -> None:
        self.begun.append((attempt.trajectory_id, self.now))
        if len(self.begun) % self.flaky == 0:
            self.doomed.add(attempt.trajectory_id)
        self.running.append((attempt, self.now))

    def submit_new(self) -> None:
        self.serial += 1
        name = f"g{self.serial}"
        self.gate.submit(
            Attempt(trajectory_id=f"{name}-0", task=Task(name), group_id=name, sibling=0)
        )

    def end(self, attempt: Attempt, outcome: Outcome) -> None:
        """Then it is tried once more, or another takes its place, as the group book does it."""
        self.ended[outcome] += 1
        failed = outcome is Outcome.INFRA_ERROR
        self.gate.ended(
            Trajectory(
                trajectory_id=attempt.trajectory_id,
                task_id=attempt.task.id,
                group_id=attempt.group_id,
                sibling=0,
                attempt=attempt.attempt,
                outcome=outcome,
                error="SandboxLost: no engine any more" if failed else None,
            )
        )
        if failed and attempt.attempt == 0:
            self.gate.submit(attempt.again())
        else:
            self.submit_new()

    def live(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            for attempt, since in list(self.running):
                fails = self.is_down or attempt.trajectory_id in self.doomed
                if fails or self.now - since >= self.attempt_s:
                    self.running.remove((attempt, since))
                    self.end(attempt, Outcome.INFRA_ERROR if fails else Outcome.FINISHED)
            self.now += TICK_S
            self.gate.tick()

    @property
    def last_begun(self) -> str:
        return self.begun[-1][0]


@pytest.fixture
def site() -> Site:
    site = Site()
    for _ in range(SEATS):
        site.submit_new()
    return site


def test_an_outage_of_a_minute_costs_few_attempts_and_all_go_on_after_it(site: Site) -> None:
    site.live(5)
    site.is_down = True
    site.live(60)
    assert site.ended[Outcome.INFRA_ERROR] <= SEATS + 8
    site.is_down = False
    site.live(60)
    assert site.gate.num_held == 0
    assert len(site.running) == SEATS
    lost = site.ended[Outcome.INFRA_ERROR]
    site.live(60)
    assert site.ended[Outcome.INFRA_ERROR] == lost


def test_an_outage_without_end_is_tried_at_the_longest_pause(site: Site) -> None:
    site.is_down = True
    site.live(3600)
    assert site.ended[Outcome.INFRA_ERROR] == pytest.approx(SEATS + 3600 / 30, rel=0.1)
    (line,) = site.gate.waits()
    assert f"{site.ended[Outcome.INFRA_ERROR]} attempts ended in infra_error" in line
    assert f"{SEATS} are held back" in line
    assert line.endswith("the newest error: SandboxLost: no engine any more")


def test_one_lost_attempt_waits_a_moment_and_holds_up_no_new_work() -> None:
    site = Site()
    site.submit_new()
    site.submit_new()
    (lost, _), (other, _) = site.running
    with capture_logs() as logs:
        site.end(lost, Outcome.INFRA_ERROR)
        assert site.gate.num_held == 1
        site.end(other, Outcome.FINISHED)
        assert site.last_begun == "g3-0"
        site.live(1)
        assert site.last_begun == "g1-0.1"
        assert site.gate.waits() == []
    assert logs == []


def test_what_ran_before_the_outage_proves_nothing_of_it(site: Site) -> None:
    old, _ = site.running.popleft()
    site.is_down = True
    site.live(4)
    held = site.gate.num_held
    site.end(old, Outcome.FINISHED)
    assert site.gate.num_held == held + 1, "what takes its place is held as well"


def test_an_attempt_of_the_outage_that_ends_well_ends_it(site: Site) -> None:
    site.is_down = True
    site.live(10)
    assert site.gate.num_held
    site.is_down, site.attempt_s = False, 1.0
    with capture_logs() as logs:
        site.live(20)
    assert site.gate.num_held == 0
    assert [line["event"] for line in logs] == ["attempts are not held back any more"]
    assert logs[0]["infra_errors"] == site.ended[Outcome.INFRA_ERROR]


def test_failures_are_logged_once_a_pause_with_the_reason(site: Site) -> None:
    site.is_down = True
    with capture_logs() as logs:
        site.live(60)
    assert [line["pause_s"] for line in logs] == [2, 4, 8, 16, 30]
    assert {line["error"] for line in logs} == {"SandboxLost: no engine any more"}


def test_pauses_leave_a_short_patience_room_for_more_than_one_try() -> None:
    site = Site(longest_pause_s=6.0)
    site.submit_new()
    site.is_down = True
    site.live(60)
    assert 8 <= site.ended[Outcome.INFRA_ERROR] <= 14


@pytest.mark.parametrize("attempt_s", [5.0, 40.0])
def test_boxes_of_which_some_fail_hold_up_little(attempt_s: float) -> None:
    """Else a run with one bad machine would do far less than the others can."""
    site = Site(attempt_s=attempt_s)
    site.flaky = 16
    for _ in range(SEATS):
        site.submit_new()
    site.live(3600)
    assert site.ended[Outcome.FINISHED] > 0.8 * SEATS * 3600 / attempt_s
