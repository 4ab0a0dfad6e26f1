"""A supervisor's list of its children, with and without the kernel's help."""

from __future__ import annotations

import posix
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sandboxes.boxd import supervisor


@pytest.fixture
def sleepers() -> Iterator[set[int]]:
    with ExitStack() as stack:
        started = [stack.enter_context(subprocess.Popen(["sleep", "60"])) for _ in range(3)]
        yield {process.pid for process in started}
        for process in started:
            process.kill()


@pytest.mark.parametrize("is_listed", [True, False])
def test_children_are_found_by_any_kernel(
    sleepers: set[int], is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = posix.open

    def without_list(path: bytes, flags: int) -> int:
        if path.endswith(b"/children"):
            raise FileNotFoundError(path)
        return really_open(path, flags)

    if not is_listed:
        monkeypatch.setattr(posix, "open", without_list)
    found = set(supervisor.children())
    assert found >= sleepers
    assert {supervisor.parent_of(pid) for pid in sleepers} == {posix.getpid()}
    assert 1 not in found


def test_the_parent_of_nobody_is_nobody() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    assert supervisor.parent_of(ended.pid) == 0
