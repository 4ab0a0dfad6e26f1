from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.errors import USAGE_ERROR, is_expected, told_plainly
from agentrl.cli.main import app
from agentrl.config.load import load_config
from sandboxes import BackendUnavailable

runner = CliRunner()
COMMANDS = (
    ["train"],
    ["check"],
    ["env", "list"],
    ["env", "check"],
    ["env", "play"],
    ["env", "demo"],
    ["inspect", "show"],
    ["replay"],
    ["simulate"],
    ["sandbox", "doctor"],
    ["sandbox", "list"],
    ["sandbox", "gc"],
    ["sandbox", "build"],
)


def test_the_version() -> None:
    assert runner.invoke(app, ["--version"]).output == f"agentrl {version('agentrl-runtime')}\n"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "-h"])
    assert result.exit_code == 0
    assert "Usage: " in result.output
    parent = runner.invoke(app, [*command[:-1], "--help"])
    assert command[-1] in parent.output


def test_help_loads_nothing_heavy() -> None:
    program = """
import sys
from typer.testing import CliRunner
from agentrl.cli.main import app
assert CliRunner().invoke(app, ["train", "--help"]).exit_code == 0
print([name for name in ("torch", "ray", "transformers", "numpy.random") if name in sys.modules])
"""
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert out.stdout.strip() == "[]"


def test_what_a_user_can_mend_is_told_in_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, told_plainly():
        load_config(tmp_path / "missing.yaml")
    assert ended.value.code == USAGE_ERROR
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert "cannot be read" in told
    assert "Traceback" not in told
    with pytest.raises(SystemExit), told_plainly():
        raise BackendUnavailable("install it")
    assert capsys.readouterr().err == "error: install it\n"


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ValueError, match="invalid literal"), told_plainly():
        int("no number")
    with pytest.raises(KeyError), told_plainly():
        raise KeyError("x")
    assert not is_expected(ValueError("never raised"))


def test_inspect_tells_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["inspect", "show", "nope"])
    assert result.exit_code == USAGE_ERROR
    assert "error: no run at 'nope'; there are no runs here" in result.output


def test_an_error_of_a_worker_is_told_in_the_workers_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class OfRay(BackendUnavailable):
        cause = BackendUnavailable("no engine here; start one")

    with pytest.raises(SystemExit) as ended, told_plainly():
        raise OfRay("ray::Runner.ready() Traceback ...")
    assert ended.value.code == USAGE_ERROR
    assert capsys.readouterr().err == "error: no engine here; start one\n"
