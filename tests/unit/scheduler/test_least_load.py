from scheduler_views import trajectory, worker

from scheduler.routing.least_load import LeastLoad
from scheduler.views import TrajectoryView, WorkerView


def chosen(policy: LeastLoad, view: TrajectoryView, *workers: WorkerView) -> str | None:
    worker = policy.choose(view, workers)
    return worker.worker_id if worker is not None else None


def test_smallest_share_of_slots_wins_and_ties_go_to_the_first() -> None:
    small, large = worker("small", running=2, slots=4), worker("large", running=3, slots=10)
    assert chosen(LeastLoad(), trajectory(), small, large) == "large"
    assert chosen(LeastLoad(), trajectory(), worker("a", running=1), worker("b", running=1)) == "a"


def test_full_fleet_makes_it_wait() -> None:
    assert chosen(LeastLoad(), trajectory(), worker("a", running=10)) is None
    assert chosen(LeastLoad(), trajectory()) is None


def test_sticks_to_its_home_until_the_gap_is_large() -> None:
    sticky = LeastLoad(sticky_gap=0.3)
    other = worker("other", running=0)
    assert chosen(sticky, trajectory(home_id="home"), other, worker("home", running=3)) == "home"
    assert chosen(sticky, trajectory(home_id="home"), other, worker("home", running=4)) == "other"


def test_full_home_is_left() -> None:
    sticky = LeastLoad(sticky_gap=1.0)
    workers = (worker("home", running=10), worker("other", running=9))
    assert chosen(sticky, trajectory(home_id="home"), *workers) == "other"


def test_restarted_home_holds_no_cache_and_is_no_home() -> None:
    sticky = LeastLoad(sticky_gap=1.0)
    workers = (worker("other", running=0), worker("home", running=1, generation=1))
    assert chosen(sticky, trajectory(home_id="home"), *workers) == "other"


def test_waiting_for_home_stands_in_its_line_while_it_lives() -> None:
    loyal = LeastLoad(waits_for_home=True)
    full, idle = worker("home", running=10), worker("other", running=0)
    assert chosen(loyal, trajectory(home_id="home"), idle, full) is None
    assert loyal.lane(trajectory(home_id="home"), (idle, full)) == "home"
    assert chosen(loyal, trajectory(home_id="home"), idle) == "other"
    assert loyal.lane(trajectory(home_id="home"), (idle,)) == ""
