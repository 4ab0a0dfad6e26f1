"""An owner is known by more than its pid, which is used again."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes.ownership import Owner, local_name_may_live, this_process


def test_an_owner_survives_its_text() -> None:
    assert Owner.parse(str(this_process())) == this_process()
    assert this_process().pid == os.getpid()


@pytest.mark.parametrize(
    ("change", "may_live"),
    [
        ({}, True),
        ({"started": 1}, False),  # the pid was used again
        ({"pid": 2**22 + 1}, False),
        ({"boot": "another"}, False),
        ({"host": "elsewhere", "pid": 1, "started": 1}, True),  # cannot be judged from here
        # a container called like this host, with pids of its own
        ({"host": f"{this_process().host.rpartition('/')[0]}/1", "pid": 2**22 + 1}, True),
    ],
)
def test_who_may_still_live(change: dict[str, int | str], may_live: bool) -> None:
    assert replace(this_process(), **change).may_live() is may_live  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "x", "1", "box-1", "12-x-3"])
def test_names_that_are_not_ours_are_left_alone(name: str) -> None:
    assert local_name_may_live(name)


def test_a_process_that_ended_is_gone() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        name = f"{process.pid}-{stat.rpartition(')')[2].split()[19]}-box"
        assert local_name_may_live(name)
        process.kill()
    assert not local_name_may_live(name)
