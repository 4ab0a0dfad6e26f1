"""Where control groups are looked for and what is written, on folders that look like theirs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sandboxes.cgroup_names import group_name
from sandboxes.cgroups import BoxCgroup, Cgroups, sweep_groups
from sandboxes.ownership import this_process
from sandboxes.spec import SandboxSpec

NAME = group_name("1-2-x")
SPEC = SandboxSpec(memory_bytes=1000, pids=7, cpus=1.5)


def version_1(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).mkdir(parents=True)


def test_version_1_has_a_group_in_each_tree_below_our_own(tmp_path: Path) -> None:
    version_1(tmp_path, "memory/job", "pids", "cpu,cpuacct", "freezer")
    (tmp_path / "memory/job/memory.memsw.limit_in_bytes").touch()
    cgroups = Cgroups.find(
        tmp_path, "4:memory:/job\n3:cpu,cpuacct:/\n2:pids:/\n1:freezer:/\n0::/\n"
    )
    assert cgroups.version == 1
    box = cgroups.make("1-2-x", SPEC)
    assert sorted(str(p.relative_to(tmp_path)) for p in box.procs_files) == [
        f"cpu,cpuacct/{NAME}/cgroup.procs",
        f"memory/job/{NAME}/cgroup.procs",
        f"pids/{NAME}/cgroup.procs",
    ]
    written = {p.name: p.read_text() for folder in box.folders for p in folder.iterdir()}
    assert written == {
        "memory.limit_in_bytes": "1000",
        "memory.memsw.limit_in_bytes": "1000",
        "pids.max": "7",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
    }


def test_a_path_of_the_host_seen_from_a_container_means_the_top(tmp_path: Path) -> None:
    version_1(tmp_path, "memory")
    cgroups = Cgroups.find(tmp_path, "4:memory:/docker/0123\n")
    assert cgroups.parents == {"memory": tmp_path / "memory"}


def test_version_2_has_one_group_with_all_settings(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("io memory pids")
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "cgroup.subtree_control").write_text("memory pids io")
    cgroups = Cgroups.find(tmp_path, "0::/user.slice/run.scope\n")
    assert cgroups.version == 2
    box = cgroups.make("1-2-x", SPEC)
    (folder,) = box.folders
    assert {p.name: p.read_text() for p in folder.iterdir()} == {
        "memory.max": "1000",
        "pids.max": "7",
    }


def test_swap_is_forbidden_below_the_root_of_all_which_has_no_such_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory")
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    cgroups = Cgroups.find(tmp_path, "0::/\n")
    make_folder = Path.mkdir

    def with_its_files(folder: Path, exist_ok: bool = False) -> None:
        make_folder(folder, exist_ok=exist_ok)
        (folder / "memory.swap.max").write_text("max")

    monkeypatch.setattr(Path, "mkdir", with_its_files)
    (folder,) = cgroups.make("1-2-x", SPEC).folders
    assert (folder / "memory.swap.max").read_text() == "0"


def test_nothing_writable_means_no_groups(tmp_path: Path) -> None:
    assert Cgroups.find(tmp_path, "0::/\n").parents == {}
    assert Cgroups.find(tmp_path, "").make("1-2-x", SPEC).folders == ()


def test_out_of_memory_kills_are_read_in_both_versions(tmp_path: Path) -> None:
    version_1(tmp_path, "memory")
    box = Cgroups.find(tmp_path, "4:memory:/\n").make("1-2-x", SPEC)
    assert box.num_oom_kills() == 0
    (box.folders[0] / "memory.oom_control").write_text(
        "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
    )
    assert box.num_oom_kills() == 3
    (box.folders[0] / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert box.num_oom_kills() == 2


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, ""), OSError(errno.ENODEV, "")])
def test_a_group_that_is_removed_while_it_is_asked_has_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """Another thread deletes the box; the kernel says either."""
    box = BoxCgroup(folders=(tmp_path,))
    (tmp_path / "memory.events").write_text("oom_kill 2\n")

    def removed(path: Path) -> str:
        raise error

    monkeypatch.setattr(Path, "read_text", removed)
    assert box.num_oom_kills() == 0


def test_a_group_that_is_removed_while_it_is_looked_for_has_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True])
    monkeypatch.setattr(Path, "exists", lambda path: next(answers, False))
    assert BoxCgroup(folders=(tmp_path,)).num_oom_kills() == 0


def test_sweeping_spares_the_groups_of_the_living(tmp_path: Path) -> None:
    ours, theirs = group_name(f"{this_process().local_name}-x"), group_name(f"{os.getpid()}-1-x")
    of_a_container = f"agentrl-1-{os.getpid()}-1-x"
    stay = [ours, of_a_container, "other"]
    version_1(tmp_path, *(f"memory/{name}" for name in [*stay, theirs]), f"memory/job/{theirs}")
    sweep_groups(tmp_path)
    assert sorted(p.name for p in (tmp_path / "memory").iterdir()) == sorted([*stay, "job"])
    assert not list((tmp_path / "memory/job").iterdir())


def test_what_cannot_be_swept_is_told_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    version_1(tmp_path, f"memory/{group_name(f'{os.getpid()}-1-x')}/still-in-use")
    sweep_groups(tmp_path)
    assert f"a dead worker's box stays box={os.getpid()}-1-x" in caplog.text
