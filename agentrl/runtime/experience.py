"""Whether a group is trained on once, or again while it is recent: the replay cycle.

A step's fresh groups are each used once. Beside them a step may take groups of earlier steps, drawn
from those that still taught something when they were fresh: younger ones are likelier, and the
trainer weighs their tokens by the ratio to the log-probs they were sampled with.

Invariants
- A group is trained on at most 1 + `max_reuses` times, and never twice in one step.
- A group whose oldest weights are more than `max_staleness` optimizer steps old is not drawn.
- What is drawn depends on the run's seed, the step and what there is to draw from; neither on the
  order in which groups came nor on how often the run was interrupted.
- A checkpoint names the groups; their tokens are in the record, which is on disk first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from math import log
from pathlib import Path
from typing import Any, Protocol

import structlog

from agentrl.config.run import RunConfig
from agentrl.config.sections import ReplaySection
from agentrl.record.reader import RunReader
from agentrl.types import Group, Json

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGroup:
    """A group that was trained on; `group.reuse` counts the steps after the first that did."""

    group: Group
    step: int
    """The step it was fresh in."""

    @property
    def oldest_version(self) -> int:
        versions = (t.oldest_policy_version for t in self.group.trajectories)
        return min(version for version in versions if version is not None)

    def reference(self) -> Json:
        """What a checkpoint says of it, for `recalled`."""
        group = self.group
        return {
            "group_id": group.group_id,
            "task_id": group.task_id,
            "size": group.size,
            "reuse": group.reuse,
            "step": self.step,
            "members": [[t.trajectory_id, t.attempt] for t in group.trajectories],
        }


class Experience(Protocol):
    """What becomes of groups after the step that they were fresh in."""

    def draw(self, step: int) -> list[Group]:
        """Groups that this step trains on again, each marked with how often that is by then."""
        ...

    def keep(self, step: int, groups: Sequence[Group]) -> None:
        """Take in the fresh groups that a step has trained on."""
        ...

    def references(self) -> list[Json]:
        """What there is to draw from, for a checkpoint."""
        ...


class FreshOnly:
    """Every group is used once."""

    def draw(self, step: int) -> list[Group]:
        return []

    def keep(self, step: int, groups: Sequence[Group]) -> None:
        return None

    def references(self) -> list[Json]:
        return []


class RecentExperience:
    """Groups of the last steps, for a bounded number of reuses."""

    def __init__(
        self, section: ReplaySection, *, num_groups: int, seed: int, kept: Sequence[KeptGroup] = ()
    ) -> None:
        """`num_groups` are drawn a step, or as many as there are."""
        self._section = section
        self._num_groups = num_groups
        self._seed = seed
        self._kept = {one.group.group_id: one for one in kept}

    def draw(self, step: int) -> list[Group]:
        newest = step - 1
        self._kept = {name: one for name, one in self._kept.items() if self._may_be(one, newest)}
        drawn = nlargest(
            self._num_groups, self._kept.values(), key=lambda one: self._priority(one, step)
        )
        groups = []
        for one in sorted(drawn, key=lambda one: one.group.group_id):
            group = replace(one.group, reuse=one.group.reuse + 1)
            self._kept[group.group_id] = replace(one, group=group)
            groups.append(group)
        return groups

    def keep(self, step: int, groups: Sequence[Group]) -> None:
        for group in groups:
            self._kept[group.group_id] = KeptGroup(group=group, step=step)

    def references(self) -> list[Json]:
        return [one.reference() for one in self._kept.values()]

    def _may_be(self, one: KeptGroup, newest: int) -> bool:
        is_recent = newest - one.oldest_version <= self._section.max_staleness
        return is_recent and one.group.reuse < self._section.max_reuses

    def _priority(self, one: KeptGroup, step: int) -> float:
        """The highest of these are a weighted draw without replacement (Efraimidis, Spirakis)."""
        number = random.Random(f"{self._seed}/{step}/{one.group.group_id}").random()
        age = step - 1 - one.oldest_version
        weight: float = 0.5 ** (age / self._section.half_life_steps)
        return log(1 - number) / weight


def make_experience(
    config: RunConfig, references: Sequence[Mapping[str, Any]], run: Path
) -> Experience:
    """`references` are those of the checkpoint that the run goes on from."""
    num_groups = config.train.replayed_groups_per_step
    if not num_groups:
        return FreshOnly()
    return RecentExperience(
        config.train.replay,
        num_groups=num_groups,
        seed=config.seed,
        kept=list(recalled(run, references)) if references else (),
    )


def recalled(run: Path, references: Sequence[Mapping[str, Any]]) -> Iterator[KeptGroup]:
    """Groups by reference, from the record; one that the record lost is left out, with a warning."""
    reader = RunReader(run)
    steps = {reference["step"] for reference in references}
    rows = {
        (row.trajectory_id, row.attempt, row.step): row
        for row in reader.rows(split="train")
        if row.step in steps
    }
    for reference in references:
        step = reference["step"]
        wanted = [(*member, step) for member in reference["members"]]
        if not all(member in rows for member in wanted):
            logger.warning(
                "a group is not replayed: the record lacks it", group=reference["group_id"]
            )
            continue
        trajectories = tuple(reader.trajectory(rows[member]).trajectory for member in wanted)
        yield KeptGroup(
            group=Group(
                group_id=reference["group_id"],
                task_id=reference["task_id"],
                size=reference["size"],
                trajectories=trajectories,
                reuse=reference["reuse"],
            ),
            step=step,
        )
