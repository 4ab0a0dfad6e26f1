"""The replay cycle: how often, how old, how young, and the same again after a checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_trajectories import CONFIG_YAML, comparable, make_trajectory

from agentrl.config.sections import ReplaySection
from agentrl.record.writer import RunWriter
from agentrl.runtime.experience import RecentExperience, recalled
from agentrl.types import Group, Origin, Segment

SECTIONS = st.builds(
    ReplaySection,
    share=st.just(0.5),
    max_reuses=st.integers(1, 3),
    max_staleness=st.integers(1, 5),
    half_life_steps=st.floats(0.1, 50),
)
ARRIVALS = st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=12)
"""For each step, how stale each of its fresh groups is."""


def group_of(name: str, version: int, size: int = 2) -> Group:
    """Its tokens were sampled by the weights of `version`."""
    trajectories = []
    for sibling in range(size):
        trajectory = make_trajectory(name, sibling)
        rows = tuple(tuple(aged(segment, version) for segment in row) for row in trajectory.rows)
        trajectories.append(replace(trajectory, rows=rows))
    return Group(group_id=name, task_id="task-0", size=size, trajectories=tuple(trajectories))


def aged(segment: Segment, version: int) -> Segment:
    if segment.origin is not Origin.SAMPLED:
        return segment
    return replace(segment, policy_versions=np.full(len(segment), version, dtype=np.int32))


@given(section=SECTIONS, arrivals=ARRIVALS, num_groups=st.integers(1, 6), seed=st.integers(0, 9))
@settings(deadline=None)
def test_groups_are_used_a_bounded_number_of_times_and_only_while_recent(
    section: ReplaySection, arrivals: list[list[int]], num_groups: int, seed: int
) -> None:
    experience = RecentExperience(section, num_groups=num_groups, seed=seed)
    uses: Counter[str] = Counter()
    version_of: dict[str, int] = {}
    for step, staleness in enumerate(arrivals, start=1):
        drawn = experience.draw(step)
        fresh = [
            group_of(f"s{step}n{n}", max(0, step - 1 - old)) for n, old in enumerate(staleness)
        ]
        experience.keep(step, fresh)
        assert len(drawn) == len({group.group_id for group in drawn}) <= num_groups
        for group in drawn:
            assert group.reuse == uses[group.group_id]
            assert step - 1 - version_of[group.group_id] <= section.max_staleness
        eligible = [
            name
            for name, version in version_of.items()
            if step - 1 - version <= section.max_staleness and uses[name] <= section.max_reuses
        ]
        assert len(drawn) == min(num_groups, len(eligible))
        uses.update(group.group_id for group in [*drawn, *fresh])
        version_of |= {
            g.group_id: max(0, step - 1 - o) for g, o in zip(fresh, staleness, strict=True)
        }
    assert all(count <= 1 + section.max_reuses for count in uses.values())


@given(seed=st.integers(0, 3), order=st.permutations(range(6)))
@settings(deadline=None)
def test_what_is_drawn_does_not_depend_on_who_came_first(seed: int, order: list[int]) -> None:
    section = ReplaySection(share=0.5, max_reuses=2)

    def draws(numbers: list[int]) -> list[list[str]]:
        experience = RecentExperience(section, num_groups=2, seed=seed)
        experience.keep(1, [group_of(f"g{n}", 0) for n in numbers])
        return [[group.group_id for group in experience.draw(step)] for step in (2, 3, 4)]

    assert draws(order) == draws(list(range(6)))


def test_younger_groups_are_drawn_more_often_by_their_half_life() -> None:
    section = ReplaySection(share=0.5, max_reuses=1, max_staleness=9, half_life_steps=2.0)
    old, young = group_of("old", 1), group_of("young", 3)
    counts: Counter[str] = Counter()
    for seed in range(600):
        experience = RecentExperience(section, num_groups=1, seed=seed)
        experience.keep(4, [old, young])
        counts.update(group.group_id for group in experience.draw(5))
    assert 0.60 < counts["young"] / 600 < 0.73  # two steps younger: two to one


def test_a_checkpoint_names_groups_that_the_record_gives_back(tmp_path: Path) -> None:
    section = ReplaySection(share=0.5, max_reuses=2, max_staleness=9)
    before = RecentExperience(section, num_groups=2, seed=1)
    writer = RunWriter(tmp_path, CONFIG_YAML)
    for step in (1, 2):
        groups = [group_of(f"s{step}n{n}", step - 1) for n in range(3)]
        before.draw(step)
        before.keep(step, groups)
        for trajectory in [t for group in groups for t in group.trajectories]:
            writer.trajectory(replace(trajectory, attempt=0, reward=9.0), step=step + 5)
            writer.trajectory(trajectory, step=step, advantage=0.5)
    writer.flush()
    references = json.loads(json.dumps(before.references()))
    kept = list(recalled(tmp_path, references))
    after = RecentExperience(section, num_groups=2, seed=1, kept=kept)
    writer.close()
    for step in (3, 4, 5):
        assert comparable(after.draw(step)) == comparable(before.draw(step))


def test_a_group_that_the_record_lost_is_left_out(tmp_path: Path) -> None:
    whole, torn = group_of("whole", 0), group_of("torn", 0)
    writer = RunWriter(tmp_path, CONFIG_YAML)
    for trajectory in [*whole.trajectories, torn.trajectories[0]]:
        writer.trajectory(trajectory, step=1, advantage=0.5)
    writer.close()
    experience = RecentExperience(ReplaySection(share=0.5), num_groups=2, seed=1)
    experience.keep(1, [whole, torn])
    found = [kept.group.group_id for kept in recalled(tmp_path, experience.references())]
    assert found == ["whole"]
