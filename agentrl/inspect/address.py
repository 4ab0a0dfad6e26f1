"""The address of anything in a run: `RUN[/STEP[/GROUP[/TRAJECTORY]]]`.

RUN is a folder, or the name of one below `runs/`. GROUP is an id or its number in the step's
table. TRAJECTORY is an id or a sibling's number; of a sibling that was tried again, the last try.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from agentrl.record.index import IndexRow
from agentrl.record.layout import RunLayout
from agentrl.record.reader import RunReader

RUNS = Path("runs")


@dataclass(frozen=True, slots=True)
class Address:
    """A run and the names below it."""

    run: Path
    step: int | None = None
    group: str | None = None
    trajectory: str | None = None


def parse_address(text: str) -> Address:
    """Raises ValueError when no run is there, or a step is not a number."""
    parts = Path(text).parts
    for length in range(len(parts), max(0, len(parts) - 4), -1):
        for run in (Path(*parts[:length]), RUNS.joinpath(*parts[:length])):
            if RunLayout(run).run.exists():
                return _below(run, parts[length:])
    known = sorted(path.parent.name for path in RUNS.glob("*/run.json"))
    raise ValueError(f"no run at {text!r}{_there(parts[0] if parts else '', known, 'runs')}")


def _below(run: Path, parts: tuple[str, ...]) -> Address:
    step, group, trajectory = (*parts, None, None, None)[:3]
    if step is not None and not step.isdecimal():
        raise ValueError(f"{run}: step {step!r} is not a number")
    return Address(run, None if step is None else int(step), group, trajectory)


def groups_at(reader: RunReader, step: int, split: str | None) -> dict[str, list[IndexRow]]:
    """A step's groups; of training when there are any, unless `split` says otherwise."""
    by_split = {
        name: reader.groups(step, name) for name in ([split] if split else ["train", "eval"])
    }
    for groups in by_split.values():
        if groups:
            return groups
    steps = reader.steps(split)
    known = f"it has steps {steps[0]} to {steps[-1]}" if steps else "it has no trajectories yet"
    raise ValueError(f"{reader.layout.root} has no trajectories at step {step}; {known}")


def find_group(reader: RunReader, step: int, name: str, split: str | None) -> list[IndexRow]:
    """The members of a group, by id or by number."""
    everything = reader.groups(step, split)
    if name in everything:
        return everything[name]
    listed = list(groups_at(reader, step, split).values())
    if name.isdecimal() and int(name) < len(listed):
        return listed[int(name)]
    raise ValueError(f"step {step} has no group {name!r}{_there(name, list(everything), 'groups')}")


def find_trajectory(members: list[IndexRow], name: str) -> IndexRow:
    """One member of a group, by id or by sibling number."""
    found = [row for row in members if name in (row.trajectory_id, str(row.sibling))]
    if found:
        return found[-1]
    known = [row.trajectory_id for row in members]
    raise ValueError(
        f"group {members[0].group_id} has no trajectory {name!r}{_there(name, known, 'trajectories')}"
    )


def _there(name: str, known: list[str], noun: str) -> str:
    if not known:
        return f"; there are no {noun} here"
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    more = f" and {len(known) - 8} more" if len(known) > 8 else ""
    return f"; {noun} here: {', '.join(known[:8])}{more}"
