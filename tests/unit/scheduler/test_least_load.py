from scheduler.events import Role
from scheduler.routing.least_load import LeastLoad
from scheduler.views import Phase, TrajectoryView, WorkerView


def worker(worker_id: str, *, running: int, slots: int = 10, generation: int = 0) -> WorkerView:
    return WorkerView(
        worker_id=worker_id,
        generation=generation,
        job="main",
        role=Role.ROLLOUT,
        bucket="default",
        tp=1,
        max_running=slots,
        kv_tokens=None,
        policy_version=0,
        num_running=running,
        running_tokens=0,
    )


def trajectory(home: str | None = None, home_generation: int = 0) -> TrajectoryView:
    return TrajectoryView(
        job="main",
        trajectory_id="t0",
        generation=0,
        group_id="g0",
        task_family="",
        is_eval=False,
        prompt_tokens=0,
        submitted_t=0.0,
        phase=Phase.WAITING,
        turn=0,
        tokens=0,
        turn_tokens=(),
        tools=(),
        context_tokens=0,
        ready_t=1.0,
        home_id=home,
        home_generation=home_generation,
        last_move_turn=-1,
    )


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
    assert chosen(sticky, trajectory("home"), other, worker("home", running=3)) == "home"
    assert chosen(sticky, trajectory("home"), other, worker("home", running=4)) == "other"


def test_full_home_is_left() -> None:
    sticky = LeastLoad(sticky_gap=1.0)
    workers = (worker("home", running=10), worker("other", running=9))
    assert chosen(sticky, trajectory("home"), *workers) == "other"


def test_restarted_home_holds_no_cache_and_is_no_home() -> None:
    sticky = LeastLoad(sticky_gap=1.0)
    workers = (worker("other", running=0), worker("home", running=1, generation=1))
    assert chosen(sticky, trajectory("home", home_generation=0), *workers) == "other"
