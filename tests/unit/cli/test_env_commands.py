from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.main import app

runner = CliRunner()

SUMS = """
from agentrl import Env, Task, Turn, reward

class Sums(Env):
    hint: bool = False

    @classmethod
    def tasks(cls, split):
        return [Task(f"{split}{n}", prompt=f"{n}+1", data={"answer": str(n + 1)}) for n in range(2)]

    @reward
    def right(self):
        return float(self.turns[-1].text == self.task.data["answer"]) BONUS

    def demo(self):
        yield Turn(self.task.data["answer"])
"""


@pytest.fixture
def sums(tmp_path: Path) -> str:
    path = tmp_path / "sums.py"
    path.write_text(SUMS.replace("BONUS", ""))
    return f"{path}:Sums"


def run(*words: str, typed: str = "") -> tuple[int, str]:
    result = runner.invoke(app, ["env", *words], input=typed)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_shipped_environments_are_listed() -> None:
    code, out = run("list")
    assert code == 0
    assert any(line.split()[:2] == ["trail", "envs.trail:Trail"] for line in out.splitlines())


def test_a_good_environment_passes_its_check(sums: str) -> None:
    code, out = run("check", sums)
    assert (code, out.splitlines()[-1]) == (0, "ok")
    assert "demo() earns          1" in out


def test_an_environment_that_rewards_silence_fails_its_check(tmp_path: Path) -> None:
    path = tmp_path / "generous.py"
    path.write_text(SUMS.replace("BONUS", "or 1.0"))
    code, out = run("check", f"{path}:Sums")
    assert code == 1
    assert "problem: task train0: a policy that says nothing earns 1" in out


def test_a_demonstration_is_printed(sums: str) -> None:
    code, out = run("demo", sums, "--task", "1", "--split", "eval")
    assert code == 0
    lines = [line.strip() for line in out.splitlines()]
    assert lines[lines.index("user") + 1] == "1+1"
    assert lines[lines.index("assistant") + 1] == "2"
    assert ["reward", "1"] in [line.split() for line in lines]


def test_a_person_plays(sums: str) -> None:
    code, out = run("play", sums, "--set", "hint=true", typed="1\n")
    assert code == 0
    assert ["reward", "1"] in [line.split() for line in out.splitlines()]


def test_real_tools_run_without_a_model() -> None:
    code, out = run("demo", "trail", "--set", "max_hops=2", "--backend", "subprocess")
    assert code == 0
    assert "result of sh, " in out
    assert ["reward", "1"] in [line.split() for line in out.splitlines()]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["check", "nope"], "no environment 'nope'"),
        (["demo", "trail", "--set", "hops=3"], "did you mean 'max_hops'"),
        (["demo", "trail", "--set", "max_hops"], "--set max_hops: wanted OPTION=VALUE"),
        (["demo", "trail", "--set", "max_hops=[1"], "wanted OPTION=VALUE, the value in YAML"),
        (["demo", "trail", "--split", "eval", "--task", "99999"], "has no task 99999"),
    ],
)
def test_mistakes_are_told_without_traceback(words: list[str], told: str) -> None:
    code, out = run(*words)
    assert code == 2
    assert "error: " in out
    assert told in out
    assert "Traceback" not in out
