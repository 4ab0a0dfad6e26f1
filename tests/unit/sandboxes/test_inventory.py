"""Which control groups are taken for boxes, and for whose, on folders that look like theirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxes import inventory
from sandboxes.cgroup_names import group_name, groups_below
from sandboxes.engine.connection import Address
from sandboxes.inventory import OwnerState, collect, take_inventory
from sandboxes.ownership import this_process

OURS = f"{this_process().local_name}-a"
DEAD = f"{os.getpid()}-1-b"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    nowhere = Address(f"http+unix://{tmp_path}/none.sock")
    monkeypatch.setattr("sandboxes.engine.connection._addresses", lambda: iter([nowhere]))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(inventory, "ROOT", tmp_path)
    return tmp_path


async def states() -> dict[str, tuple[OwnerState, bool]]:
    return {box.name: (box.owner, box.is_left_over) for box in (await take_inventory()).boxes}


async def test_boxes_of_other_sessions_and_services_are_seen(root: Path) -> None:
    (root / group_name(DEAD)).mkdir()
    (root / "system.slice/run.service" / group_name(OURS)).mkdir(parents=True)
    (root / "system.slice/agentrl-train.service").mkdir()
    assert await states() == {DEAD: (OwnerState.DEAD, True), OURS: (OwnerState.LIVES, False)}


async def test_boxes_of_other_pid_namespaces_are_seen_and_left_alone(root: Path) -> None:
    """A pid of a container's is nobody's here or somebody else's."""
    in_container = root / "system.slice/docker-1.scope" / f"agentrl-1-{DEAD}"
    in_container.mkdir(parents=True)
    (in_container / "cgroup.procs").write_text("0\n")
    assert await states() == {DEAD: (OwnerState.ELSEWHERE, False)}
    assert (await collect()).boxes == ()


async def test_boxes_of_others_are_not_ours_to_remove(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / group_name(DEAD)).mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != root)
    assert await states() == {}


async def test_two_may_collect_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others remove what dead owners left too, between our look and our turn."""
    group = root / group_name(DEAD)
    group.mkdir()
    found = tuple(groups_below(root))
    monkeypatch.setattr("sandboxes.inventory.groups_below", lambda root: iter(found))
    group.rmdir()
    assert [box.name for box in (await collect()).boxes] == [DEAD]
