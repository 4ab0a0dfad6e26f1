"""A checkpoint is whole or not there."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.train.checkpoint_folders import (
    CheckpointHeader,
    complete_checkpoints,
    latest_checkpoint,
    new_checkpoint,
    prune_checkpoints,
    read_header,
)


def write(root: Path, step: int, text: str = "weights") -> None:
    header = CheckpointHeader(step=step, progress={"cursor": step}, trainer={})
    with new_checkpoint(root, header) as folder:
        (folder / "training").mkdir()
        (folder / "training" / "state").write_text(text)


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_the_latest_is_the_highest_number_not_the_last_name(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") is None
    for step in (9, 10, 2_000_000, 999_999):
        write(tmp_path, step)
    assert list(complete_checkpoints(tmp_path)) == [9, 10, 999_999, 2_000_000]
    latest = latest_checkpoint(tmp_path)
    assert latest == tmp_path / "step-2000000"
    assert read_header(latest).progress == {"cursor": 2_000_000}


def test_a_crash_while_writing_leaves_the_older_one_and_no_rubbish(tmp_path: Path) -> None:
    def stop_half_way() -> None:
        header = CheckpointHeader(step=2, progress={}, trainer={})
        with new_checkpoint(tmp_path, header) as folder:
            (folder / "state").write_text("half")
            raise KeyboardInterrupt

    write(tmp_path, 1)
    with pytest.raises(KeyboardInterrupt):
        stop_half_way()
    assert names(tmp_path) == {"step-000001"}


def test_what_a_killed_process_left_is_ignored_and_swept_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".writing-step-000002").mkdir(parents=True)
    (tmp_path / ".writing-step-000002" / "state").write_text("half")
    assert latest_checkpoint(tmp_path) is None
    write(tmp_path, 3)
    assert names(tmp_path) == {"step-000003"}


class Killed(BaseException):
    pass


@pytest.mark.parametrize("calls_before", range(4))
def test_a_kill_while_a_step_is_saved_again_leaves_one_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls_before: int
) -> None:
    """Ctrl-C soon after a checkpoint saves its step again."""
    write(tmp_path, 1, "first")
    left = iter(range(calls_before))

    def until_killed(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any) -> Any:
            if next(left, None) is None:
                raise Killed
            return change(*arguments)

        return changed

    with monkeypatch.context() as killed, contextlib.suppress(Killed):
        killed.setattr(Path, "rename", until_killed(Path.rename))
        killed.setattr(shutil, "rmtree", until_killed(shutil.rmtree))
        write(tmp_path, 1, "again")
    survivor = latest_checkpoint(tmp_path)
    assert survivor is not None
    assert (survivor / "training" / "state").read_text() in ("first", "again")
    write(tmp_path, 2)
    assert names(tmp_path) == {"step-000001", "step-000002"}
    assert list(complete_checkpoints(tmp_path)) == [1, 2]


@pytest.mark.parametrize("damage", ["shorter", "missing", "unmarked"])
def test_a_folder_copied_in_part_is_no_checkpoint(tmp_path: Path, damage: str) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    newest = tmp_path / "step-000002"
    match damage:
        case "shorter":
            (newest / "training" / "state").write_text("weig")
        case "missing":
            (newest / "training" / "state").unlink()
        case "unmarked":
            (newest / "complete.json").unlink()
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000001"
    with pytest.raises(ValueError, match="step-000002: it is not complete"):
        read_header(newest)
    write(tmp_path, 2, "again")
    assert (newest / "training" / "state").read_text() == "again"
    assert latest_checkpoint(tmp_path) == newest


def test_another_format_version_says_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, 1)
    folder = tmp_path / "step-000001"
    header = folder / "checkpoint.json"
    content = json.loads(header.read_text())
    assert content["format_version"] == 1
    header.write_text(header.read_text().replace('"format_version": 1', '"format_version": 7'))
    with pytest.raises(ValueError, match=r"format version 7, wanted 1; resume with the version"):
        read_header(folder)


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 10):
        write(tmp_path, step)
    prune_checkpoints(tmp_path, keep=2, best_step=2)
    assert names(tmp_path) == {"step-000002", "step-000004", "step-000010"}
    prune_checkpoints(tmp_path, keep=2, best_step=10)
    assert names(tmp_path) == {"step-000004", "step-000010"}
    prune_checkpoints(tmp_path, keep=2, best_step=None)
    assert names(tmp_path) == {"step-000004", "step-000010"}
