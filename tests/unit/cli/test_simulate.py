"""`agentrl simulate` from file to table, on a simulation of a second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from agentrl.cli.simulate import simulate
from scheduler.sim.settings import read_settings
from scheduler.sim.sharing import read_sharing

app = typer.Typer()
app.command()(simulate)

REPOSITORY = Path(__file__).parents[3]

SMALL = {
    "name": "small",
    "agents": {"preset": "search", "group_size": 2},
    "steps": {"num_steps": 1, "groups_per_step": 2},
    "fleets": {"two": {1: 2}},
    "policies": {"least_load": [{}], "buckets": [{}]},
    "seeds": 2,
    "tuning_seeds": 1,
}


def test_table_and_report(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL, sort_keys=False))
    result = CliRunner().invoke(app, [str(file), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "least_load" in result.output
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert [row["policy"] for row in report["rows"]] == ["least_load", "buckets"]
    assert "<svg" in (tmp_path / "out/report.html").read_text()


def test_wrong_file_and_folder_are_told_plainly(tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, [str(tmp_path / "none.yaml")])
    assert missing.exit_code == 2
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL, sort_keys=False))
    no_run = CliRunner().invoke(app, [str(file), "--trace", str(tmp_path)])
    assert no_run.exit_code == 2


@pytest.mark.parametrize("file", sorted((REPOSITORY / "configs/sim").glob("*.yaml")), ids=str)
def test_shipped_files_are_valid(file: Path) -> None:
    data = yaml.safe_load(file.read_text())
    if "jobs" in data:
        assert read_sharing(data).jobs
        return
    settings = read_settings(data)
    settings.agents.model()
    assert all(settings.workers(fleet) for fleet in settings.fleets)
