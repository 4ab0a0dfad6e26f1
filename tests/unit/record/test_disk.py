"""A disk that refuses, in words for who can mend it."""

import errno
from pathlib import Path

import pytest

from agentrl.record.disk import DiskFailed, needed_on_disk


def test_the_message_names_the_file_and_its_disk(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with (
        pytest.raises(
            DiskFailed, match=r"jsonl: \[Errno 28\] No space left.* of the disk at /\S* "
        ),
        needed_on_disk(path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_other_errors_are_no_fault_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(KeyError), needed_on_disk(tmp_path):
        raise KeyError
