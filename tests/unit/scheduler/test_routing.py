from __future__ import annotations

import pytest
from scheduler_driver import Driver
from scheduler_views import tool, trajectory, worker

from scheduler.admission import CapacityAdmission
from scheduler.costs import DecodeCost, PrefillCost, Shape
from scheduler.estimators.oracle import Oracle
from scheduler.estimators.prefix_tree import PrefixTree
from scheduler.events import Finished, Role, ToolStatus, TurnReady, WorkerReady
from scheduler.load import Work, WorkerLoad
from scheduler.routing.buckets import BucketRouter, BucketSettings
from scheduler.routing.least_load import LeastLoad
from scheduler.routing.longest_first import LongestFirst
from scheduler.routing.round_robin import RoundRobin
from scheduler.routing.thresholds import ElapsedGrader, GatedGrader, ThresholdRouter
from scheduler.views import TrajectoryView, WorkerView

LIMITS = (("short", 100.0), ("long", float("inf")))


def shape(tp: int, kv_tokens: int = 100_000) -> Shape:
    """Wide workers decode one sequence faster and many slower."""
    return Shape(
        tp=tp,
        decode=DecodeCost(b=0.016 / tp, b0=0.0, c=1e-4 * tp, a=0.0, d=0.0),
        prefill=PrefillCost(per_token=1e-4),
        kv_tokens=kv_tokens,
    )


def router(lengths: dict[str, int], **settings: object) -> BucketRouter:
    estimator = Oracle(lambda view: lengths[view.trajectory_id])
    shapes = {"narrow": shape(1), "wide": shape(8)}
    return BucketRouter(estimator, shapes, BucketSettings(**settings))  # type: ignore[arg-type]


NARROW, WIDE = worker("n", bucket="narrow"), worker("w", bucket="wide")


def live_on(policy: BucketRouter, home: WorkerView, name: str, **fields: object) -> TrajectoryView:
    view = trajectory(name, home_id=home.worker_id, turn=3, **fields)
    policy.turn_ready(view)
    policy.placed(view)
    return view


def decide(policy: BucketRouter, view: TrajectoryView, *workers: WorkerView) -> str | None:
    """The turn is queued, then served."""
    policy.lane(view, workers)
    return name_of(policy.choose(view, workers))


def order_of(policy: BucketRouter, name: str, **fields: object) -> float:
    view = trajectory(name, **fields)
    policy.turn_ready(view)
    return policy.order(view)


def name_of(chosen: WorkerView | None) -> str | None:
    return chosen.worker_id if chosen is not None else None


# ------------------------------------------------------------------------------------- baselines


def test_round_robin_takes_turns_and_skips_full_workers() -> None:
    policy = RoundRobin()
    workers = (worker("a"), worker("b", running=10), worker("c"))
    picks = [name_of(policy.choose(trajectory(), workers)) for _ in range(4)]
    assert picks == ["a", "c", "a", "c"]
    assert policy.choose(trajectory(), (worker("b", running=10),)) is None


def test_elapsed_attempts_move_up() -> None:
    policy = ThresholdRouter(ElapsedGrader(LIMITS), LIMITS, LeastLoad())
    workers = (worker("s", bucket="short", running=5), worker("l", bucket="long"))
    assert name_of(policy.choose(trajectory(tokens=100), workers)) == "s"
    assert name_of(policy.choose(trajectory(tokens=101), workers)) == "l"


def test_full_bucket_lends_a_slot_elsewhere() -> None:
    policy = ThresholdRouter(ElapsedGrader(LIMITS), LIMITS, LeastLoad())
    workers = (worker("s", bucket="short", running=10), worker("l", bucket="long"))
    assert name_of(policy.choose(trajectory(), workers)) == "l"


def test_turn_that_waits_for_its_home_holds_up_nobody_else() -> None:
    policy = ThresholdRouter(ElapsedGrader(LIMITS), LIMITS, LeastLoad(waits_for_home=True))
    workers = (worker("s", bucket="short", running=10), worker("t", bucket="short"))
    waiting, new = trajectory(home_id="s"), trajectory("new")
    assert policy.choose(waiting, workers) is None
    assert policy.lane(waiting, workers) != policy.lane(new, workers)
    assert name_of(policy.choose(new, workers)) == "t"


@pytest.mark.parametrize(("lengths", "moves"), [((500, 500), True), ((10, 500), False)])
def test_gate_opens_when_mean_and_p90_agree(lengths: tuple[int, ...], moves: bool) -> None:
    tree = PrefixTree()
    limits = (("short", 300.0), ("long", float("inf")))
    for i, length in enumerate(lengths):
        before = trajectory(f"t{i}", group_id=f"g{i}", tokens=10)
        tree.turn_finished(before)
        after = trajectory(
            f"t{i}", group_id=f"g{i}", tokens=10 + length, tools=(tool(ToolStatus.OK),)
        )
        tree.ended(after, is_complete=True)
    policy = ThresholdRouter(GatedGrader(limits, tree), limits, LeastLoad())
    workers = (worker("s", bucket="short"), worker("l", bucket="long"))
    assert name_of(policy.choose(trajectory("x"), workers)) == "s"
    returned = trajectory("x", group_id="new", turn=1, tools=(tool(ToolStatus.OK),))
    assert name_of(policy.choose(returned, workers)) == ("l" if moves else "s")


def test_longest_goes_first_after_a_probe_of_each_group() -> None:
    lengths = {"a": 10, "b": 500, "c": 900}
    policy = LongestFirst(Oracle(lambda view: lengths[view.trajectory_id]), LeastLoad())
    orders = {name: policy.order(trajectory(name)) for name in "abc"}
    assert orders["a"] < orders["c"] < orders["b"]


# ------------------------------------------------------------------------------------------ ours


def test_drain_time_with_and_without_a_resident() -> None:
    load = WorkerLoad()
    works = {("main", str(i)): Work(r, 0.0, 10) for i, r in enumerate((100.0, 400.0, 50.0))}
    for key, work in works.items():
        load.add(key, work)
    narrow = shape(1)
    assert load.drain_seconds(narrow) == pytest.approx(0.016 * 400 + 1e-4 * 550)
    without = load.drain_seconds_without(narrow, ("main", "1"))
    assert without == pytest.approx(0.016 * 100 + 1e-4 * 150)
    load.remove(("main", "1"))
    assert load.drain_seconds(narrow) == pytest.approx(without)
    assert load.drain_seconds_with(narrow, works["main", "1"]) == pytest.approx(
        0.016 * 400 + 1e-4 * 550
    )


def test_long_attempt_moves_to_the_wide_worker_and_a_short_one_stays() -> None:
    policy = router({"long": 10_000, "short": 100})
    long = live_on(policy, NARROW, "long", context_tokens=1000)
    assert decide(policy, long, NARROW, WIDE) == "w"
    policy = router({"long": 10_000, "short": 100})
    live_on(policy, NARROW, "long", context_tokens=1000)
    short = live_on(policy, NARROW, "short", context_tokens=1000)
    assert decide(policy, short, NARROW, WIDE) == "n"


def test_move_must_pay_for_its_prefill() -> None:
    policy = router({"long": 100})
    costly = live_on(policy, NARROW, "long", context_tokens=20_000)
    assert decide(policy, costly, NARROW, WIDE) == "n"


def test_attempt_that_has_just_moved_stays() -> None:
    policy = router({"long": 10_000})
    moved = live_on(policy, NARROW, "long", last_move_turn=2)
    assert decide(policy, moved, NARROW, WIDE) == "n"


def test_full_home_is_waited_for() -> None:
    policy = router({"a": 100})
    full = worker("n", bucket="narrow", running=10)
    view = live_on(policy, full, "a", context_tokens=5000)
    other = worker("m", bucket="narrow")
    assert policy.choose(view, (full, other)) is None
    assert policy.lane(view, (full, other)) == "n"


def test_lost_home_is_not_waited_for() -> None:
    policy = router({"a": 100})
    view = live_on(policy, NARROW, "a")
    assert decide(policy, view, WIDE) == "w"


def test_new_attempt_waits_for_memory_unless_the_worker_is_empty() -> None:
    policy = router({"a": 100, "b": 100})
    big = trajectory("b", context_tokens=80_000)
    policy.turn_ready(big)
    assert decide(policy, big, NARROW) == "n"
    live_on(policy, NARROW, "a", context_tokens=50_000)
    assert policy.choose(big, (NARROW,)) is None
    assert decide(policy, big, NARROW, WIDE) == "w"


def test_longest_forecast_goes_first_within_patience() -> None:
    policy = router({"a": 10, "b": 9000, "c": 10}, probes_first=False, patience_s=50.0)
    orders = {name: order_of(policy, name, ready_t=0.0) for name in "ab"}
    assert orders["b"] < orders["a"]
    late = order_of(policy, "b", ready_t=51.0)
    assert order_of(policy, "c", ready_t=0.0) < late


def test_first_of_a_group_goes_before_the_longest() -> None:
    policy = router({"a": 10, "b": 9000})
    assert order_of(policy, "a") < order_of(policy, "b")


def test_start_that_waits_for_memory_begins_when_an_attempt_ends() -> None:
    """The end holds no slot, and nothing else happens afterwards."""
    policy = router({"a": 100, "b": 100})
    admission = CapacityAdmission(groups_per_step=2, num_steps=1, max_running_groups=9)
    run = Driver(routing=policy, admission=admission, observers=(policy,))
    run.send(WorkerReady, worker_id="n", bucket="narrow", role=Role.ROLLOUT, max_running=9)
    for name in "ab":
        run.submit(name)
    ready = {"turn": 0, "context_tokens": 80_000}
    assert len(run.send(TurnReady, trajectory_id="a", **ready)) == 1
    assert run.send(TurnReady, trajectory_id="b", **ready) == ()
    assert run.finish_turn("a") == ()
    (place,) = run.send(Finished, trajectory_id="a", tokens=10)
    assert place.trajectory_id == "b"


def test_the_tail_lane_is_kept_for_attempts_that_are_likely_long() -> None:
    policy = router({"short": 100, "long": 9000}, tail_workers=1, tail_tokens=8000)
    for name, expected in (("short", "n"), ("long", "w")):
        view = trajectory(name)
        policy.turn_ready(view)
        assert decide(policy, view, NARROW, WIDE) == expected
    full = worker("n", running=10, bucket="narrow")
    assert decide(policy, trajectory("short"), full, WIDE) is None
    assert decide(policy, trajectory("short"), WIDE) == "w", "no others are left"


def test_without_a_tail_lane_short_attempts_go_wide_too() -> None:
    policy = router({"short": 100})
    full = worker("n", running=10, bucket="narrow")
    policy.turn_ready(trajectory("short"))
    assert decide(policy, trajectory("short"), full, WIDE) == "w"


def test_a_context_is_computed_ahead_where_its_attempt_will_go() -> None:
    """As in the move of a long attempt to the wide worker; once asked it is not asked again."""
    policy = router({"a": 5000, "b": 1000, "c": 1000})
    views = [live_on(policy, NARROW, name, context_tokens=100) for name in "abc"]
    assert name_of(policy.prewarm(views[0], [NARROW, WIDE])) == "w"
    assert policy.prewarm(views[0], [NARROW, WIDE]) is None
    assert policy.prewarm(views[1], [NARROW]) is None


def test_a_prefill_that_is_done_already_is_not_charged_again() -> None:
    """With 350 000 tokens to compute a move does not pay; with them computed it does."""
    lengths = {"a": 5000, "b": 1000, "c": 1000}
    cold, warm = router(lengths), router(lengths)
    for policy in (cold, warm):
        views = [live_on(policy, NARROW, name, context_tokens=350_000) for name in "abc"]
    warm._warm["main", "a"] = ("w", 0)
    assert decide(cold, views[0], NARROW, WIDE) == "n"
    assert decide(warm, views[0], NARROW, WIDE) == "w"
