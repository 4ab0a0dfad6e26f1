from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from scheduler_views import tool, trajectory

from scheduler.estimators.choose import NAMES, make_estimator
from scheduler.estimators.context_tree import ContextTree, elapsed, nothing, siblings, tool_history
from scheduler.estimators.hazard import HazardModel
from scheduler.estimators.oracle import Oracle
from scheduler.estimators.pooled import PooledTrees
from scheduler.estimators.prefix_tree import PrefixTree
from scheduler.estimators.sibling_posterior import SiblingPosterior
from scheduler.estimators.sibling_rule import SiblingRule
from scheduler.events import ToolStatus
from scheduler.policies import LengthEstimator
from scheduler.views import TrajectoryView

LEARNERS: dict[str, Callable[[], LengthEstimator]] = {
    "constant": lambda: ContextTree(nothing),
    "elapsed": lambda: ContextTree(elapsed),
    "history": lambda: ContextTree(tool_history, strength=4),
    "siblings": lambda: ContextTree(siblings, strength=4),
    "pooled": lambda: PooledTrees(strength=4),
    "hazard": HazardModel,
    "posterior": SiblingPosterior,
    "combined": lambda: HazardModel(siblings=SiblingPosterior()),
}


def live(
    estimator: LengthEstimator,
    name: str,
    turns: list[int],
    *,
    status: ToolStatus = ToolStatus.OK,
    finish: bool = True,
    **fields: object,
) -> TrajectoryView:
    """One attempt with the given tokens a turn; all its tools answer alike."""
    view = trajectory(name, **fields)
    for turn, tokens in enumerate(turns):
        if turn:
            view = replace(view, turn=turn, tools=(*view.tools, tool(status, turn=turn)))
        estimator.turn_ready(view)
        view = replace(view, tokens=view.tokens + tokens, turn_tokens=(*view.turn_tokens, tokens))
        estimator.turn_finished(view)
    if finish:
        estimator.ended(view, is_complete=True)
    return view


@pytest.mark.parametrize("name", LEARNERS)
def test_equal_attempts_are_forecast_exactly(name: str) -> None:
    estimator = LEARNERS[name]()
    for i in range(60):
        live(estimator, f"t{i}", [300], siblings_finished=(300,))
    residual = estimator.predict(trajectory(siblings_finished=(300,)))
    assert residual.quantile(0.5) == pytest.approx(300, rel=0.35)


@pytest.mark.parametrize("name", LEARNERS)
def test_an_attempt_that_goes_on_in_another_process_is_met_in_the_middle(name: str) -> None:
    estimator = LEARNERS[name]()
    before = trajectory(
        "t", turn=2, tokens=150, turn_tokens=(100, 50), tools=(tool(turn=0), tool(turn=1))
    )
    estimator.turn_ready(before)
    assert estimator.predict(before).mean > 0
    after = replace(before, tokens=220, turn_tokens=(100, 50, 70))
    estimator.turn_finished(after)
    estimator.ended(after, is_complete=True)
    estimator.turn_ready(trajectory("t"))


@pytest.mark.parametrize("name", ["history", "hazard", "combined"])
def test_failing_tools_tell_long_from_short(name: str) -> None:
    estimator = LEARNERS[name]()
    for i in range(40):
        live(estimator, f"s{i}", [100, 100], status=ToolStatus.OK)
        live(estimator, f"l{i}", [100] * 20, status=ToolStatus.ERROR)
    after_ok = trajectory(turn=1, tokens=100, tools=(tool(ToolStatus.OK),))
    after_error = trajectory(turn=1, tokens=100, tools=(tool(ToolStatus.ERROR),))
    assert estimator.predict(after_error).mean > 4 * estimator.predict(after_ok).mean


def test_finished_siblings_tell_of_the_group() -> None:
    estimator = LEARNERS["siblings"]()
    for i in range(40):
        live(estimator, f"s{i}", [100], siblings_finished=(100,))
        live(estimator, f"l{i}", [4000], siblings_finished=(4000,))
    short = estimator.predict(trajectory(siblings_finished=(110, 90))).mean
    assert estimator.predict(trajectory(siblings_finished=(4000, 3900))).mean > 4 * short


def test_running_attempts_teach_before_they_end() -> None:
    """Right-censoring: long ones are still running while only short ones have finished."""
    knows, ignores = ContextTree(nothing), ContextTree(nothing, learns_from_running=False)
    for estimator in (knows, ignores):
        for i in range(20):
            live(estimator, f"s{i}", [50])
            live(estimator, f"l{i}", [5000], finish=False)
    assert knows.predict(trajectory()).mean > 3 * ignores.predict(trajectory()).mean
    assert knows.predict(trajectory()).tail(4000) == pytest.approx(0.5, abs=0.1)


def test_old_attempts_are_forgotten() -> None:
    forgets, keeps = (ContextTree(nothing, half_life=life) for life in (20.0, 1e9))
    for estimator in (forgets, keeps):
        for i in range(200):
            live(estimator, f"a{i}", [100])
        for i in range(60):
            live(estimator, f"b{i}", [3000])
    assert forgets.predict(trajectory()).quantile(0.5) > 1500
    assert keeps.predict(trajectory()).quantile(0.5) < 200


def test_forgetting_survives_its_rescaling() -> None:
    estimator = ContextTree(nothing, half_life=0.5)
    for i in range(100):
        live(estimator, f"a{i}", [100])
    assert estimator.predict(trajectory()).quantile(0.5) < 200


def test_lost_attempts_do_not_count_as_ends() -> None:
    estimator = ContextTree(nothing)
    for i in range(30):
        estimator.ended(live(estimator, f"f{i}", [40], finish=False), is_complete=False)
        live(estimator, f"d{i}", [4000])
    assert estimator.predict(trajectory()).quantile(0.2) > 1500


@pytest.mark.parametrize("name", LEARNERS)
def test_fresh_estimator_gives_a_distribution(name: str) -> None:
    residual = LEARNERS[name]().predict(trajectory(siblings_finished=(10,)))
    assert sum(residual.probabilities) == pytest.approx(1.0)
    assert residual.mean > 0


def test_estimators_do_not_share_what_they_learn() -> None:
    one, other = PooledTrees(), PooledTrees()
    before = other.predict(trajectory())
    for i in range(20):
        live(one, f"t{i}", [20])
    assert other.predict(trajectory()) == before
    assert one.predict(trajectory()) != before


def test_prefix_tree_finds_the_longest_known_beginning() -> None:
    tree = PrefixTree()
    live(tree, "a", [100, 200, 300], status=ToolStatus.ERROR, group_id="g1")  # type: ignore[arg-type]
    known = trajectory(turn=1, tools=(tool(ToolStatus.ERROR),), group_id="other")
    expected = tree.expected(known)
    assert expected is not None
    assert expected.mean == 500
    unknown = trajectory(turn=1, tools=(tool(ToolStatus.OK),), group_id="other")
    fallback = tree.expected(unknown)
    assert fallback is not None
    assert fallback.mean == 600
    assert tree.expected(trajectory()) is None


def test_sibling_rule_takes_unknown_groups_for_the_longest() -> None:
    rule = SiblingRule(max_tokens=1000)
    assert rule.predict(trajectory(tokens=100)).mean == 900
    assert rule.predict(trajectory(tokens=100, siblings_finished=(300, 200))).mean == 200
    assert rule.predict(trajectory(tokens=500, siblings_finished=(300,))).mean == 1


def test_oracle_knows_and_its_noise_is_fixed_per_attempt() -> None:
    assert Oracle(lambda view: 1000).predict(trajectory(tokens=400)).mean == 600
    noisy = Oracle(lambda view: 1000, log_noise=1.0, seed=3)
    first, again = noisy.predict(trajectory("a")), noisy.predict(trajectory("a"))
    assert first == again != noisy.predict(trajectory("b"))


def test_finished_and_running_siblings_move_the_posterior() -> None:
    """Four that still run after many tokens say as much as finished ones; other groups nothing."""

    def group_of(tokens: int, *, finish: bool) -> float:
        posterior = SiblingPosterior()
        for i in range(20):
            for j in range(4):
                live(posterior, f"{i}.{j}", [100 * (1 + 9 * (i % 2)) + 40 * j], group_id=f"p{i}")
        for i in range(4):
            live(posterior, f"s{i}", [tokens], finish=finish, group_id="g0")
        finished = (tokens,) * 4 if finish else ()
        return posterior.predict(trajectory("asked", siblings_finished=finished)).mean

    unknown = group_of(1, finish=False)
    assert group_of(4000, finish=True) > 3 * unknown
    assert group_of(4000, finish=False) > 2 * unknown
    assert group_of(30, finish=True) < unknown / 3


def test_an_attempt_that_outlived_its_group_has_yet_something_left() -> None:
    posterior = SiblingPosterior()
    for i in range(10):
        for j in range(4):
            live(posterior, f"{i}.{j}", [90 + 5 * j], group_id=f"p{i}")
    fresh = posterior.predict(trajectory(siblings_finished=(100, 100)))
    old = posterior.predict(trajectory(tokens=3000, siblings_finished=(100, 100)))
    assert old.mean > fresh.mean


def test_turns_of_running_attempts_teach_the_hazard_model() -> None:
    knows, empty = HazardModel(), HazardModel()
    for i in range(10):
        live(knows, f"l{i}", [100] * 30, finish=False)
    assert knows.predict(trajectory()).mean > 3 * empty.predict(trajectory()).mean


def test_a_sibling_shift_is_worth_what_it_was_worth_before() -> None:
    combined = HazardModel(siblings=SiblingPosterior())
    for i in range(60):
        turns = [100] * (3 if i % 2 else 20)
        tokens = sum(turns)
        live(combined, f"{i}.0", turns, group_id=f"p{i}")
        live(combined, f"{i}.1", turns, group_id=f"p{i}", siblings_finished=(tokens,))
    of_long = combined.predict(trajectory("a", siblings_finished=(2000, 2000))).mean
    of_short = combined.predict(trajectory("b", siblings_finished=(300, 300))).mean
    assert of_long > 1.5 * of_short


@pytest.mark.parametrize("name", NAMES)
def test_what_was_learned_survives_a_checkpoint(name: str) -> None:
    taught = make_estimator(name, half_life=50)
    for i in range(30):
        status = ToolStatus.ERROR if i % 3 else ToolStatus.OK
        turns = [100] * (2 + i % 5)
        live(taught, f"t{i}", turns, status=status, group_id=f"p{i}", siblings_finished=(300,))
    restored = make_estimator(name, half_life=50)
    asked = trajectory(
        turn=1, tokens=100, tools=(tool(ToolStatus.ERROR),), siblings_finished=(300,)
    )
    assert restored.predict(asked) != taught.predict(asked)
    restored.restore(json.loads(json.dumps(taught.state())))
    assert restored.predict(asked) == taught.predict(asked)
    for estimator in (taught, restored):
        live(estimator, "more", [900], siblings_finished=(300,))
    assert restored.predict(asked) == taught.predict(asked)


def test_unknown_estimators_are_refused() -> None:
    with pytest.raises(ValueError, match="tarot"):
        make_estimator("tarot")
