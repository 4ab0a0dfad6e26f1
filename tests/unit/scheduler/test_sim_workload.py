"""The made-up agents have the shape that was asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler.events import ToolStatus
from scheduler.sim.workload import PRESETS, AgentWorkload, AttemptPlan


def groups(preset: str, number: int = 60, **changes: float) -> list[tuple[AttemptPlan, ...]]:
    model = replace(PRESETS[preset], **changes)  # type: ignore[arg-type]
    workload = AgentWorkload(model=model, seed=3, group_size=8)
    return [workload.group(index) for index in range(number)]


def lengths(drawn: list[tuple[AttemptPlan, ...]]) -> np.ndarray:
    return np.array([[plan.tokens for plan in group] for group in drawn])


def test_group_does_not_depend_on_what_was_drawn_before() -> None:
    workload = AgentWorkload(model=PRESETS["swe"], seed=3)
    later = workload.group(7)
    for index in range(7):
        workload.group(index)
    assert workload.group(7) == later
    assert AgentWorkload(model=PRESETS["swe"], seed=4).group(7) != later


@pytest.mark.parametrize("preset", PRESETS)
def test_attempts_keep_their_limits_and_end_with_a_turn_without_a_tool(preset: str) -> None:
    model = PRESETS[preset]
    for group in groups(preset):
        for plan in group:
            assert 1 <= len(plan.turns) <= model.max_turns
            assert plan.tokens <= model.max_tokens
            assert plan.context_tokens <= model.max_context_tokens
            assert [turn.tool is None for turn in plan.turns].count(True) == 1
            assert plan.turns[-1].tool is None
            assert all(turn.tokens >= 1 for turn in plan.turns)


@pytest.mark.parametrize("preset", ["search", "math", "swe"])
def test_lengths_are_long_tailed_and_shared_by_siblings(preset: str) -> None:
    drawn = lengths(groups(preset, 150))
    tokens = np.sort(drawn.ravel())
    longest_tenth = tokens[int(0.9 * len(tokens)) :].sum() / tokens.sum()
    assert longest_tenth > 0.35
    logs = np.log(drawn)
    explained = logs.mean(axis=1).var() / logs.var()
    by_chance = 1 / drawn.shape[1]
    assert explained > 2 * by_chance


def test_controls_are_what_they_say() -> None:
    equal = lengths(groups("equal"))
    assert equal.std() / equal.mean() < 0.05
    tail = np.log(lengths(groups("tail_without_signal", 150)))
    assert tail.mean(axis=1).var() / tail.var() < 0.25


@pytest.mark.parametrize(("signal", "tells"), [(1.0, True), (0.0, False)])
def test_failures_announce_long_attempts_only_with_a_signal(signal: float, tells: bool) -> None:
    failed: list[float] = []
    fine: list[float] = []
    for group in groups("search", 300, signal=signal, loop=0.0):
        for plan in group:
            first = plan.turns[0].tool
            if first is not None:
                left = plan.tokens - plan.turns[0].tokens
                (fine if first.status is ToolStatus.OK else failed).append(float(np.log(left)))
    assert (np.mean(failed) - np.mean(fine) > 0.3) == tells


def test_drift_scales_lengths_over_the_run() -> None:
    workload = AgentWorkload(
        model=PRESETS["equal"], seed=1, group_size=4, drift=4.0, drift_groups=10
    )
    first, last = (lengths([workload.group(index)]).mean() for index in (0, 10))
    assert last / first == pytest.approx(4.0, rel=0.1)


def test_shuffled_results_keep_tokens_and_times() -> None:
    model = PRESETS["swe"]
    real = AgentWorkload(model=model, seed=3, group_size=4)
    shuffled = AgentWorkload(model=model, seed=3, group_size=4, shuffles_tools=True)
    changed = 0
    for index in range(8):
        for one, other in zip(real.group(index), shuffled.group(index), strict=True):
            assert one.tokens == other.tokens
            assert one.context_tokens == other.context_tokens
            for turn, again in zip(one.turns, other.turns, strict=True):
                assert (turn.tool is None) == (again.tool is None)
                if turn.tool is not None and again.tool is not None:
                    assert turn.tool.seconds == again.tool.seconds
                    changed += turn.tool.status is not again.tool.status
    assert changed > 50
    assert shuffled.group(2) == shuffled.group(2)
