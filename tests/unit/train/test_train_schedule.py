"""Learning rates at the corners of a schedule."""

from __future__ import annotations

import pytest

from agentrl.config.sections import OptimizerSection, WarmupSection
from agentrl.train.schedule import training_schedule, warmup_schedule


def rates(section: OptimizerSection, steps: int) -> list[float]:
    schedule = training_schedule(section, steps=steps)
    return [schedule.rate(update) for update in range(1, steps + 1)]


def test_linear_rises_and_falls_to_its_share() -> None:
    section = OptimizerSection(learning_rate=1.0, warmup_steps=2, final_fraction=0.2)
    assert rates(section, 6) == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_is_half_way_down_in_the_middle() -> None:
    section = OptimizerSection(
        learning_rate=1.0, warmup_steps=0, schedule="cosine", final_fraction=0.5
    )
    got = rates(section, 4)
    assert got[1] == pytest.approx(0.75)
    assert got[3] == pytest.approx(0.5)
    assert got == sorted(got, reverse=True)


def test_constant_ignores_the_final_share() -> None:
    section = OptimizerSection(learning_rate=1.0, warmup_steps=2, schedule="constant")
    assert rates(section, 4) == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_run_no_longer_than_its_rise_stays_on_it(steps: int) -> None:
    section = OptimizerSection(learning_rate=1.0, warmup_steps=3)
    assert rates(section, steps) == pytest.approx([1 / 3, 2 / 3, 1.0][:steps])


def test_steps_beyond_the_run_keep_the_final_rate() -> None:
    schedule = training_schedule(OptimizerSection(learning_rate=1.0, warmup_steps=0), steps=4)
    assert schedule.rate(5) == schedule.rate(4) == pytest.approx(0.1)


def test_the_warmup_has_a_plateau() -> None:
    section = WarmupSection(
        steps=10, learning_rate=1.0, warmup_steps=2, decay_fraction=0.4, final_fraction=0.2
    )
    schedule = warmup_schedule(section)
    got = [schedule.rate(update) for update in range(1, 11)]
    assert got == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])


def test_a_warmup_without_decay_ends_at_its_peak() -> None:
    section = WarmupSection(steps=4, learning_rate=1.0, warmup_steps=0, decay_fraction=0.0)
    assert warmup_schedule(section).rate(4) == 1.0
