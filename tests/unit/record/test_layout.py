from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.record.layout import RunLayout, create_run_folder


def test_a_taken_name_gets_a_number(tmp_path: Path) -> None:
    made = [create_run_folder(tmp_path / "runs", "quick").name for _ in range(3)]
    assert made == ["quick", "quick-2", "quick-3"]


def test_steps_are_in_numeric_order(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.training.mkdir()
    for step in (9, 10, 1_000_000, 2):
        layout.training_step(step).touch()
    (layout.training / ".step-000011.safetensors.partial").touch()
    assert layout.training_steps() == [2, 9, 10, 1_000_000]


def test_chunks_are_numbered_on(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.trajectories.mkdir()
    assert layout.next_chunk() == 0
    layout.index.touch()
    for chunk in (0, 9, 10):
        layout.chunk_text(chunk).touch()
    layout.chunk_open_columns(10).touch()
    assert layout.next_chunk() == 11
    assert layout.open_chunks() == [10]


def test_a_place_where_no_run_folder_can_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("not a folder")
    with pytest.raises(
        ValueError, match=r"no run folder can be made in .*runs: File exists; choose"
    ):
        create_run_folder(tmp_path / "runs", "quick")
