from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import orjson
import pytest
from sample_trajectories import CONFIG_YAML, comparable, make_trajectory

from agentrl.record.chunks import ChunkWriter
from agentrl.record.jsonl import read_lines
from agentrl.record.reader import RunReader
from agentrl.record.writer import RunWriter, WriterLimits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture
def stuck_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Trajectories are written once this is set."""
    may_write = threading.Event()
    append = ChunkWriter.append

    def wait_and_append(self: ChunkWriter, *args: object) -> None:
        assert may_write.wait(30)
        append(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(ChunkWriter, "append", wait_and_append)
    return may_write


def test_a_run_folder_holds_what_was_handed_over(folder: Path) -> None:
    writer = RunWriter(folder, CONFIG_YAML)
    writer.trajectory(make_trajectory(), step=1, advantage=0.5)
    writer.metrics({"step": 1, "reward": np.float32(0.25)})
    writer.training(1, {"advantages": np.ones(3, np.float32)}, samples=[("g000000-0", 3)])
    writer.summary({"eval_reward": 0.5})
    writer.close()
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        ".lock",
        "run.json",
        "config.yaml",
        "metrics.jsonl",
        "summary.json",
        "trajectories/index.jsonl",
        "trajectories/000000.jsonl",
        "trajectories/000000.safetensors",
        "training/replayed.jsonl",
        "training/step-000001.safetensors",
    }
    assert (folder / "config.yaml").read_text() == CONFIG_YAML
    (metrics,) = (line for _, line in read_lines(folder / "metrics.jsonl"))
    assert metrics["reward"] == 0.25
    assert orjson.loads((folder / "summary.json").read_bytes()) == {"eval_reward": 0.5}


def test_text_and_tokens_can_be_read_before_the_chunk_is_sealed(folder: Path) -> None:
    writer = RunWriter(folder, CONFIG_YAML)
    try:
        trajectory = make_trajectory()
        writer.trajectory(trajectory, step=1)
        reader = RunReader(folder)
        while not (rows := reader.rows()):
            pass
        assert (folder / "trajectories/000000.tokens").exists()
        assert comparable(reader.trajectory(rows[0]).trajectory) == comparable(trajectory)
    finally:
        writer.close()
    assert not (folder / "trajectories/000000.tokens").exists()
    assert comparable(reader.trajectory(rows[0]).trajectory) == comparable(trajectory)


def test_full_chunks_are_sealed(folder: Path) -> None:
    writer = RunWriter(folder, CONFIG_YAML, limits=WriterLimits(chunk_bytes=4000))
    given = [make_trajectory(f"g{i:06d}") for i in range(10)]
    for trajectory in given:
        writer.trajectory(trajectory, step=1)
    writer.close()
    assert len(list(folder.glob("trajectories/0*.jsonl"))) > 2
    reader = RunReader(folder)
    back = [reader.trajectory(row).trajectory for row in reader.rows()]
    assert [comparable(t) for t in back] == [comparable(t) for t in given]


def test_what_does_not_fit_is_dropped_and_counted(
    folder: Path, stuck_disk: threading.Event
) -> None:
    writer = RunWriter(folder, CONFIG_YAML, limits=WriterLimits(queued_bytes=1))
    for sibling in range(5):
        writer.trajectory(make_trajectory(sibling=sibling), step=1)
    writer.metrics({"step": 1})
    assert writer.dropped == {"trajectory": 4}
    stuck_disk.set()
    writer.close()
    assert [row.sibling for row in RunReader(folder).rows()] == [0]
    assert len(RunReader(folder).metrics()) == 1
    assert RunReader(folder).info.launches[0].dropped == {"trajectory": 4}


def test_closing_has_a_deadline(folder: Path, stuck_disk: threading.Event) -> None:
    writer = RunWriter(folder, CONFIG_YAML)
    writer.trajectory(make_trajectory(), step=1)
    writer.close(timeout_s=0.01)
    assert writer.dropped == {"closing": 1}
    writer.trajectory(make_trajectory(), step=1)
    assert writer.dropped == {"closing": 1, "trajectory": 1}
    stuck_disk.set()


def test_a_disk_that_refuses_is_counted_and_never_raised(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ChunkWriter, *args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(ChunkWriter, "append", refuse)
    writer = RunWriter(folder, CONFIG_YAML)
    for sibling in range(3):
        writer.trajectory(make_trajectory(sibling=sibling), step=1)
    writer.metrics({"step": 1})
    writer.close()
    assert writer.failed == {"trajectory": 3}
    assert len(RunReader(folder).metrics()) == 1


def test_an_array_without_samples_is_no_harm(folder: Path) -> None:
    writer = RunWriter(folder, CONFIG_YAML)
    writer.training(3, {"advantages": np.zeros(0, np.float32)})
    writer.close()
    assert not writer.failed
    assert RunReader(folder).training(3, "g000000-0") is None


def test_one_process_writes_a_run_at_a_time(folder: Path) -> None:
    writer = RunWriter(folder, CONFIG_YAML)
    with pytest.raises(ValueError, match="being written by another process"):
        RunWriter(folder, CONFIG_YAML)
    writer.close()
    RunWriter(folder, CONFIG_YAML).close()


def test_a_killed_process_loses_nothing_that_was_written(folder: Path) -> None:
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from sample_trajectories import make_trajectory
from agentrl.record.reader import RunReader
from agentrl.record.writer import RunWriter
folder = Path({str(folder)!r})
writer = RunWriter(folder, "seed: 0\\n")
for sibling in range(4):
    writer.trajectory(make_trajectory(sibling=sibling), step=1)
while len(RunReader(folder).rows()) < 4:
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert killed.returncode == -9
    with (folder / "trajectories/index.jsonl").open("ab") as index:
        index.write(b'{"torn')
    with (folder / "trajectories/000000.tokens").open("ab") as tokens:
        tokens.write(b"torn")

    reader = RunReader(folder)
    assert reader.info.launches[0].is_alive is False
    before = [comparable(reader.trajectory(row).trajectory) for row in reader.rows()]
    assert before == [comparable(make_trajectory(sibling=sibling)) for sibling in range(4)]

    RunWriter(folder, CONFIG_YAML, first_step=2).close()
    assert not list(folder.glob("trajectories/*.tokens"))
    reader = RunReader(folder)
    assert [comparable(reader.trajectory(row).trajectory) for row in reader.rows()] == before
    assert len(reader.info.launches) == 2


def test_steps_done_again_count_once(folder: Path) -> None:
    first = RunWriter(folder, CONFIG_YAML)
    for step in (1, 2, 3):
        first.trajectory(make_trajectory(f"old{step}"), step=step)
        first.metrics({"step": step, "reward": 0.0})
    first.summary({"eval_reward": 0.0})
    first.close()
    second = RunWriter(folder, CONFIG_YAML, first_step=2)
    assert RunReader(folder).summary is None
    second.trajectory(make_trajectory("new2"), step=2)
    second.metrics({"step": 2, "reward": 1.0})
    second.close()
    reader = RunReader(folder)
    assert [row.group_id for row in reader.rows()] == ["old1", "new2"]
    assert [(line["step"], line["reward"]) for line in reader.metrics()] == [(1, 0.0), (2, 1.0)]
