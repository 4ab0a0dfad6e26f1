"""Settings, comparisons, reports and recorded workloads, on a very small simulation."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from scheduler.replay import LogEntry
from scheduler.sim.charts import Occupancy, speedup_bars
from scheduler.sim.report import HEADINGS, cells_of, rows_of, to_html, to_json
from scheduler.sim.run import Choice, Comparison, compare, figures_of, simulate, workload_of
from scheduler.sim.settings import read_settings
from scheduler.sim.statistics import speedup
from scheduler.sim.trace import RecordedWorkload, recorded_groups
from scheduler.sim.workload import AgentWorkload, AttemptPlan
from scheduler.wiring import World, wire


def small(**changes: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "agents": {"preset": "search", "group_size": 4},
        "steps": {"num_steps": 2, "groups_per_step": 2},
        "max_running": 4,
        "fleets": {"2xTP1": {1: 2}, "1xTP2": {2: 1}},
        "policies": {
            "least_load": [{"sticky_gap": 1.0}],
            "buckets": [{"margin": 0.05}, {"margin": 0.2}],
            "clairvoyant": [{}],
        },
        "yardsticks": ["clairvoyant"],
        "seeds": 2,
        "tuning_seeds": 1,
        **changes,
    }


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    settings = read_settings(small())
    return compare(settings, workload_of(settings))


def test_every_policy_is_measured_on_the_same_seeds(comparison: Comparison) -> None:
    assert [len(result.figures) for result in comparison.results] == [2, 2, 2]
    for result in comparison.results:
        assert set(result.seconds_by_fleet) == {"2xTP1", "1xTP2"}
        assert result.seconds_by_fleet[result.choice.fleet] == min(result.seconds_by_fleet.values())


def test_baseline_is_compared_with_itself_at_one(comparison: Comparison) -> None:
    rows = {row.policy: row for row in rows_of(comparison)}
    assert rows["least_load"].vs_baseline.mean == 1.0
    assert rows["least_load"].vs_baseline_same_fleet.mean == 1.0
    assert 0 <= rows["buckets"].bubble <= 1


def test_same_seed_same_figures(comparison: Comparison) -> None:
    settings = comparison.settings
    again = compare(settings, workload_of(settings))
    assert [r.figures for r in again.results] == [r.figures for r in comparison.results]


class _Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows = 0
        self.external: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.rows += tag == "tr"
        self.external += [value or "" for name, value in attrs if name in ("src", "href")]


def test_page_is_self_contained_and_has_a_row_a_policy(comparison: Comparison) -> None:
    page = to_html(comparison, [("speed", speedup_bars(rows_of(comparison)))])
    parser = _Balanced()
    parser.feed(page)
    assert parser.rows == 1 + len(comparison.results)
    assert parser.external == []
    assert all(len(cells_of(row)) == len(HEADINGS) for row in rows_of(comparison))
    assert len(to_json(comparison)["results"][0]["figures"]) == 2


def test_occupancy_draws_each_worker(comparison: Comparison) -> None:
    occupancy = Occupancy(slice_s=5.0)
    choice = Choice(fleet="2xTP1", variant={})
    settings = comparison.settings
    simulate(settings, workload_of(settings), "least_load", choice, 0, occupancy)
    picture = occupancy.to_svg()
    assert picture.count("<text") == 2
    assert picture.count("<rect") > 10


def test_table_can_hold_several_forms_of_one_policy() -> None:
    policies = {"least_load": [{}], "loyal": [{"policy": "least_load", "waits_for_home": True}]}
    settings = read_settings(small(policies=policies, yardsticks=[], seeds=1))
    comparison = compare(settings, workload_of(settings))
    assert [row.policy for row in rows_of(comparison)] == ["least_load", "loyal"]


def test_cutting_the_rest_is_fast_and_starves_the_long() -> None:
    steps = {"num_steps": 3, "groups_per_step": 4}
    kept = {}
    for name, over_sample in (("all", None), ("cut", 1.5)):
        changes = {"steps": {**steps, "over_sample": over_sample}}
        settings = read_settings(small(**changes, max_running=16))
        choice = Choice(fleet="2xTP1", variant={})
        result = simulate(settings, workload_of(settings), "least_load", choice, 1)
        kept[name] = figures_of(result, groups_per_step=4, group_size=4)
        assert len(result.ended) == 3 * 4 * 4
    assert kept["all"].long_kept == 1.0
    assert kept["cut"].long_kept < 0.8
    assert kept["cut"].seconds < kept["all"].seconds


# ------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fleet": {}}, "no key"),
        ({"agents": {"preset": "swe", "turns": 3}}, "no key"),
        ({"baseline": "round_robin"}, "not among the policies"),
    ],
)
def test_wrong_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_settings(small(**change))


def test_missing_settings_are_named() -> None:
    with pytest.raises(ValueError, match="fleets"):
        read_settings({key: value for key, value in small().items() if key != "fleets"})


def test_unknown_presets_policies_and_options_are_refused() -> None:
    with pytest.raises(ValueError, match="preset"):
        read_settings(small(agents={"preset": "chess"})).agents.model()
    world = World(shapes=read_settings(small()).shapes(), buckets=("tp1",), max_tokens=100)
    with pytest.raises(ValueError, match="unknown routing policy"):
        wire("magic", {}, world)
    with pytest.raises(ValueError, match="no option"):
        wire("least_load", {"mood": 1}, world)
    with pytest.raises(ValueError, match="estimator"):
        wire("buckets", {"estimator": "crystal ball"}, world)


def test_bootstrap_interval_holds_the_mean_and_shrinks() -> None:
    baseline = [100.0 + i for i in range(40)]
    same = speedup(baseline, baseline)
    assert (same.mean, same.low, same.high) == (1.0, 1.0, 1.0)
    faster = speedup(baseline, [b / (1.1 + 0.01 * (i % 5)) for i, b in enumerate(baseline)])
    assert faster.low < faster.mean < faster.high
    assert faster.high - faster.low < 0.02


# ---------------------------------------------------------------------------------------- traces


def shape_of(plan: AttemptPlan) -> list[tuple[int, float, int]]:
    return [
        (
            turn.tokens,
            turn.tool.seconds if turn.tool else -1,
            turn.tool.size_tokens if turn.tool else 0,
        )
        for turn in plan.turns
    ]


def test_recorded_run_gives_back_its_agents() -> None:
    settings = read_settings(small())
    log: list[LogEntry] = []
    simulate(
        settings,
        workload_of(settings),
        "least_load",
        Choice(fleet="2xTP1", variant={}),
        3,
        lambda event, decisions: log.append(LogEntry(event=event, decisions=decisions)),
    )
    groups = recorded_groups(log)
    made = AgentWorkload(model=settings.agents.model(), seed=3, group_size=4)
    originals = {f"g{i}": made.group(i) for i in range(4)}
    assert {group[0].group_id for group in groups} == set(originals)
    for group in groups:
        wanted = sorted(shape_of(plan) for plan in originals[group[0].group_id])
        assert sorted(shape_of(plan) for plan in group) == wanted


def test_recorded_workload_deals_every_group_once_a_lap() -> None:
    made = AgentWorkload(model=read_settings(small()).agents.model(), seed=1, group_size=2)
    recorded = RecordedWorkload(groups=tuple(made.group(i) for i in range(5)), seed=9)
    lap = [shape_of(recorded.group(i)[0]) for i in range(5)]
    assert sorted(lap) == sorted(shape_of(made.group(i)[0]) for i in range(5))
    assert recorded.group(7)[0].group_id == "g7"
    assert [recorded.group(i) for i in range(9)] == [recorded.group(i) for i in range(9)]
