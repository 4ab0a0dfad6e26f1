"""Which boxes there are on this machine and in its engine, and the removal of what dead owners left.

For people who want to know, not for a run: a run's backends sweep by themselves. Boxes of the
bubblewrap backend are seen by their control groups, so one without any is not listed; it dies with
its owner and leaves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxes import process
from sandboxes.cgroup_names import FoundGroup, groups_below
from sandboxes.cgroups import ROOT, BoxCgroup, text_of
from sandboxes.ownership import local_name_may_live
from sandboxes.sandbox import BackendUnavailable, SandboxError

if TYPE_CHECKING:
    from sandboxes.engine.connection import Engine
    from sandboxes.engine.reaper import EngineBox


class OwnerState(StrEnum):
    LIVES = "lives"
    DEAD = "dead"
    ELSEWHERE = "elsewhere"
    """On a host, or in a container, whose processes cannot be seen from here."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBox:
    name: str
    backend: str
    run_id: str
    """Empty where the backend does not keep it."""
    owner: OwnerState
    owner_pid: int | None
    age_s: float
    is_left_over: bool
    """Nobody has it any more; `collect` removes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    boxes: tuple[FoundBox, ...]
    engine_problem: str | None
    """Why boxes in an engine, if there are any, could not be seen; None without an engine."""


async def take_inventory() -> Inventory:
    """Everything that is there. Raises `SandboxError` when an engine stops answering."""
    async with _engine() as (engine, problem):
        found = [_engine_box(box) for box in await _in_engine(engine)]
    return Inventory(boxes=(*found, *_on_this_machine()), engine_problem=problem)


async def collect() -> Inventory:
    """Remove what is left over; `boxes` are those that were removed."""
    removed: list[FoundBox] = []
    async with _engine() as (engine, problem):
        if engine is not None:
            from sandboxes.engine.reaper import remove_boxes

            gone = await remove_boxes(engine, lambda box: box.is_forsaken(time.time()))
            removed += map(_engine_box, gone)
    for box in _on_this_machine():
        if box.is_left_over:
            try:
                await asyncio.to_thread(_remove, box)
            except OSError as e:
                raise SandboxError(f"box {box.name} of a dead owner cannot be removed: {e}") from e
            removed.append(box)
    return Inventory(boxes=tuple(removed), engine_problem=problem)


# engines


@asynccontextmanager
async def _engine() -> AsyncIterator[tuple[Engine | None, str | None]]:
    """The engine, or what is wrong with the one that should be there."""
    # The engine's SDK takes long to import.
    from sandboxes.engine.connection import EngineMissing, find_engine

    try:
        engine = await asyncio.to_thread(find_engine)
    except EngineMissing:
        yield None, None
    except BackendUnavailable as e:
        yield None, str(e)
    else:
        try:
            yield engine, None
        finally:
            await engine.close()


async def _in_engine(engine: Engine | None) -> list[EngineBox]:
    if engine is None:
        return []
    from sandboxes.engine.reaper import boxes_in

    return await boxes_in(engine)


def _engine_box(box: EngineBox) -> FoundBox:
    now = time.time()
    if box.owner is None:
        owner = OwnerState.UNKNOWN
    elif not box.owner.is_here:
        owner = OwnerState.ELSEWHERE
    else:
        owner = OwnerState.LIVES if box.owner.may_live() else OwnerState.DEAD
    return FoundBox(
        name=box.name,
        backend="docker",
        run_id=box.run_id,
        owner=owner,
        owner_pid=box.owner.pid if box.owner else None,
        age_s=max(0.0, now - box.created),
        is_left_over=box.is_forsaken(now),
    )


# this machine


def _on_this_machine() -> Iterator[FoundBox]:
    for name, groups in sorted(_groups().items()):
        is_judged_here = groups[0].is_judged_here
        yield _local_box("bubblewrap", name, groups[0].folder, is_judged_here=is_judged_here)
    for folder in sorted(Path(tempfile.gettempdir()).glob(process.PREFIX + "*")):
        name = folder.name.removeprefix(process.PREFIX)
        yield _local_box("subprocess", name, folder, is_judged_here=True)


def _groups() -> dict[str, list[FoundGroup]]:
    """The control groups of each box that we may remove, one for each controller at most."""
    found: dict[str, list[FoundGroup]] = {}
    for group in groups_below(ROOT):
        found.setdefault(group.box, []).append(group)
    return found


def _local_box(backend: str, name: str, folder: Path, *, is_judged_here: bool) -> FoundBox:
    if not is_judged_here:
        owner = OwnerState.ELSEWHERE
    else:
        owner = OwnerState.LIVES if local_name_may_live(name) else OwnerState.DEAD
    pid = name.partition("-")[0]
    try:
        created = folder.stat().st_mtime
    except FileNotFoundError:  # deleted by its owner meanwhile
        created = time.time()
    return FoundBox(
        name=name,
        backend=backend,
        run_id="",
        owner=owner,
        owner_pid=int(pid) if pid.isdecimal() else None,
        age_s=max(0.0, time.time() - created),
        is_left_over=owner is OwnerState.DEAD,
    )


def _remove(box: FoundBox) -> None:
    if box.backend == "subprocess":
        shutil.rmtree(Path(tempfile.gettempdir(), process.PREFIX + box.name), ignore_errors=True)
        return
    found = _groups().get(box.name, ())
    group = BoxCgroup(folders=tuple(group.folder for group in found))
    for file in group.procs_files:
        for pid in text_of(file).split():  # maybe removed by somebody else who collects
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    group.remove()
