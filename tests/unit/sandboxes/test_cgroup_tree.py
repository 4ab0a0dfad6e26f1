"""Where boxes get their groups under version 2, on folders that keep the kernel's rules.

What real kernels do with it is seen where one runs, see docs/sandboxes.md; these folders refuse what
they refuse: controllers that a group has not got, and to hand any down beside processes.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sandboxes import cgroup_tree
from sandboxes.cgroups import Cgroups
from sandboxes.spec import SandboxSpec

ALL = {"cpu", "memory", "pids"}
SPEC = SandboxSpec(memory_bytes=1000, pids=7, cpus=1.5)


class Tree:
    """The groups below `root`, which is the root of all or, in a container, only of what is seen."""

    def __init__(self, root: Path, *, is_root_of_all: bool = True) -> None:
        self.root = root
        self.is_root_of_all = is_root_of_all
        self.delegated: set[Path] = set()
        (root / "cgroup.controllers").write_text("cpuset cpu io memory pids")
        (root / "cgroup.subtree_control").touch()
        (root / "cgroup.procs").touch()

    def group(self, path: str, *pids: int, hands_down: str = "") -> Path:
        group = self.root / path
        group.mkdir(parents=True)
        (group / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        (group / "cgroup.subtree_control").write_text(hands_down)
        above = cgroup_tree.handed_down(group.parent)
        (group / "cgroup.controllers").write_text(" ".join(above))
        return group

    def processes(self, group: Path) -> set[str]:
        file = group / "cgroup.procs"
        return set(file.read_text().split()) if file.exists() else set()

    def write(self, file: Path, text: str) -> None:
        group = file.parent
        if file.name == "cgroup.procs":
            for other in self.root.rglob("cgroup.procs"):
                left = self.processes(other.parent) - {text}
                other.write_text("".join(f"{pid}\n" for pid in left))
            file.write_text("\n".join({*self.processes(group), text}))
            return
        assert file.name == "cgroup.subtree_control"
        names = {word.removeprefix("+") for word in text.split()}
        is_root = group == self.root
        above = self.root / "cgroup.controllers" if is_root else group.parent / file.name
        if not names <= set(above.read_text().split()):
            raise FileNotFoundError(errno.ENOENT, "no such controller", str(file))
        if self.processes(group) and not (is_root and self.is_root_of_all):
            raise OSError(errno.EBUSY, "holds processes", str(file))
        file.write_text(" ".join({*file.read_text().split(), *names}))

    def getxattr(self, path: Path, name: str) -> bytes:
        if name == "user.delegate" and path in self.delegated:
            return b"1"
        raise OSError(errno.ENODATA, "no such attribute", str(path))

    def find(self, own: str) -> Cgroups:
        return Cgroups.find(self.root, f"0::{own}\n")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    tree = Tree(tmp_path)
    monkeypatch.setattr(cgroup_tree, "write", tree.write)
    monkeypatch.setattr(os, "getxattr", tree.getxattr)
    return tree


def test_a_group_that_hands_all_down_is_taken_as_it_is(tree: Tree) -> None:
    user = tree.group("user.slice", hands_down="cpu memory pids io")
    tree.group("user.slice/run.scope", 12)
    assert tree.find("/user.slice/run.scope").parents == dict.fromkeys(ALL, user)
    assert not (user / "run.scope" / cgroup_tree.WORKERS).exists()


def test_root_on_a_machine_as_systemd_leaves_it_gets_all_controllers(tree: Tree) -> None:
    """systemd hands down what its units ask for, which by default is not the CPU."""
    tree.write(tree.root / "cgroup.subtree_control", "+memory +pids")
    tree.group("system.slice", hands_down="memory pids")
    tree.group("system.slice/run.service", 12)
    assert tree.find("/system.slice/run.service").parents == dict.fromkeys(ALL, tree.root)


def test_a_container_that_is_in_its_only_group_makes_room_in_it(tree: Tree) -> None:
    tree.is_root_of_all = False
    tree.write(tree.root / "cgroup.procs", "1")
    tree.write(tree.root / "cgroup.procs", "12")
    assert tree.find("/").parents == dict.fromkeys(ALL, tree.root)
    assert tree.processes(tree.root / cgroup_tree.WORKERS) == {"1", "12"}
    second_worker = tree.find(f"/{cgroup_tree.WORKERS}")
    assert second_worker.parents == dict.fromkeys(ALL, tree.root)


def test_boxes_are_below_the_limits_of_a_delegated_group(tree: Tree) -> None:
    tree.write(tree.root / "cgroup.subtree_control", "+cpu +memory +pids")
    tree.group("app.slice", hands_down="cpu memory pids")
    scope = tree.group("app.slice/run.scope", 12)
    tree.delegated.add(scope)
    assert tree.find("/app.slice/run.scope").parents == dict.fromkeys(ALL, scope)
    assert tree.processes(scope / cgroup_tree.WORKERS) == {"12"}


def test_a_service_that_only_owns_its_own_group_makes_room_in_it(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write(tree.root / "cgroup.subtree_control", "+cpu +memory +pids")
    tree.group("system.slice", hands_down="cpu memory pids")
    service = tree.group("system.slice/run.service", 12)
    monkeypatch.setattr(os, "access", lambda file, mode: service in Path(file).parents)
    assert tree.find("/system.slice/run.service").parents == dict.fromkeys(ALL, service)


def test_what_was_delegated_is_used_though_it_is_not_all(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write(tree.root / "cgroup.subtree_control", "+memory +pids")
    service = tree.group("run.service", 12)
    monkeypatch.setattr(os, "access", lambda file, mode: service in Path(file).parents)
    assert tree.find("/run.service").parents == dict.fromkeys(("memory", "pids"), service)
    assert tree.processes(service / cgroup_tree.WORKERS) == {"12"}


def test_room_that_is_of_no_use_is_not_made(tree: Tree) -> None:
    tree.is_root_of_all = False
    tree.write(tree.root / "cgroup.procs", "1")
    own = tree.group("own", 12)
    tree.delegated.add(own)  # but its controllers are not handed down to it
    assert tree.find("/own").parents == {}
    assert tree.processes(own) == {"12"}
    assert not (own / cgroup_tree.WORKERS).exists()


def test_what_systemd_takes_back_is_handed_down_again(tree: Tree) -> None:
    tree.write(tree.root / "cgroup.subtree_control", "+memory +pids")
    cgroups = tree.find("/")
    (tree.root / "cgroup.subtree_control").write_text("memory pids")
    cgroups.make("1-2-x", SPEC)
    assert cgroup_tree.handed_down(tree.root) == ALL


def test_without_a_right_to_move_processes_there_is_no_place(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.group("user.slice", hands_down="cpu memory pids")
    monkeypatch.setattr(os, "access", lambda file, mode: False)
    assert tree.find("/user.slice").parents == {}
