from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
from sample_trajectories import CONFIG_YAML, make_trajectory, record_run

from agentrl.record.layout import RunLayout
from agentrl.record.reader import RunReader
from agentrl.record.writer import RunWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return record_run(tmp_path / "run")


def test_steps_groups_and_siblings(run: Path) -> None:
    reader = RunReader(run)
    assert reader.steps() == [1, 2, 3]
    assert reader.steps("eval") == [3]
    groups = reader.groups(2, "train")
    assert list(groups) == ["g000004", "g000005"]
    assert [row.sibling for row in groups["g000005"]] == [0, 1, 2, 3]
    assert len(reader.groups(3)) == 3
    assert reader.summary == {"eval_reward": 0.75}


def test_a_row_agrees_with_its_trajectory(run: Path) -> None:
    reader = RunReader(run)
    for row in reader.rows():
        recorded = reader.trajectory(row)
        assert recorded.trajectory.trajectory_id == row.trajectory_id
        assert recorded.trajectory.num_tokens == row.num_tokens
        assert recorded.trajectory.num_sampled_tokens == row.num_sampled_tokens
        assert (recorded.fate.step, recorded.fate.advantage) == (row.step, row.advantage)


def test_training_columns_of_one_trajectory(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, CONFIG_YAML)
    columns = {"a": np.arange(9, dtype=np.float32), "clipped": np.arange(9) % 2 == 0}
    writer.training(2, columns, samples=[("x", 3), ("y", 4), ("x", 2)])
    writer.close()
    reader = RunReader(tmp_path)
    of_x = reader.training(2, "x")
    assert of_x is not None
    assert of_x["a"].tolist() == [0, 1, 2, 7, 8]
    assert of_x["clipped"].tolist() == [True, False, True, False, True]
    assert reader.training(2, "z") is None
    assert reader.training(3, "x") is None


def test_a_reader_follows_a_live_run(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, CONFIG_YAML)
    reader = RunReader(tmp_path)
    assert reader.rows() == []
    assert reader.metrics() == []
    for count in (1, 2):
        writer.trajectory(make_trajectory(sibling=count), step=count)
        while len(reader.rows()) < count:
            pass
    assert reader.steps() == [1, 2]
    assert reader.info.launches[0].is_alive
    writer.close()
    reader.refresh()
    assert reader.info.launches[0].is_alive is False


def test_pandas_can_read_the_lines(run: Path) -> None:
    """Every file of lines is one JSON object a line with the same keys, as pandas wants it."""
    for path in (RunLayout(run).index, RunLayout(run).chunk_text(0)):
        keys = {tuple(orjson.loads(line)) for line in path.read_bytes().splitlines()}
        assert len(keys) == 1


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema_version": 9}', '{"schema_version": 1, "launches": [{}]}']
)
def test_a_file_of_somebody_elses_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"run\.json is none that agentrl wrote"):
        RunReader(tmp_path)


def test_a_file_in_place_of_a_run_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="not a run folder"):
        RunReader(tmp_path / "file")


def test_what_is_no_run_is_refused(tmp_path: Path, run: Path) -> None:
    with pytest.raises(ValueError, match=r"not a run folder: it has no run\.json"):
        RunReader(tmp_path / "elsewhere")
    newer = orjson.loads((run / "run.json").read_bytes()) | {"schema_version": 99}
    (run / "run.json").write_bytes(orjson.dumps(newer))
    with pytest.raises(ValueError, match=r"format 99.*reads format 1"):
        RunReader(run)


def test_replays_by_step_and_by_group_without_those_done_again(tmp_path: Path) -> None:
    first = RunWriter(tmp_path, CONFIG_YAML)
    first.replayed(2, "g1", reuse=1, staleness=1)
    first.replayed(3, "g1", reuse=2, staleness=2)
    first.close()
    resumed = RunWriter(tmp_path, CONFIG_YAML, first_step=3)
    resumed.replayed(3, "g2", reuse=1, staleness=1)
    resumed.close()
    reader = RunReader(tmp_path)
    found = [(replay.step, replay.group_id, replay.reuse) for replay in reader.replays()]
    assert found == [(2, "g1", 1), (3, "g2", 1)]
    assert [replay.step for replay in reader.replays(group_id="g1")] == [2]
    assert [replay.group_id for replay in reader.replays(step=3)] == ["g2"]


def test_what_was_handed_over_before_a_flush_can_be_read_after_it(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, CONFIG_YAML)
    for number in range(50):
        writer.trajectory(make_trajectory(f"g{number:06d}"), step=1)
    writer.flush()
    assert len(RunReader(tmp_path).rows()) == 50
    writer.close()
    writer.flush()
