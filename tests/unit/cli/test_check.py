from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.main import app

runner = CliRunner()
pytestmark = pytest.mark.slow

RUN_FILE = """\
name: small
env: {name: trail, options: {max_hops: 2}}
model: {from: scratch, hidden_size: 32, intermediate_size: 64, num_heads: 2, head_dim: 8}
sandbox: {backend: subprocess}
rollout: {max_turn_tokens: 16, max_trajectory_tokens: 128, context_tokens: 256}
train: {steps: 3, groups_per_step: 2}
runtime: {pin_cores: false}
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN_FILE)
    return path


def check(path: Path, *overrides: str) -> tuple[int, str]:
    options = [word for override in overrides for word in ("--set", override)]
    result = runner.invoke(app, ["check", str(path), *options])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_an_environment_without_tasks(run_file: Path, tmp_path: Path) -> None:
    env = tmp_path / "nothing.py"
    env.write_text(
        "from agentrl import Env\nclass Nothing(Env):\n    @classmethod\n"
        "    def tasks(cls, split):\n        return []\n"
    )
    code, out = check(run_file, f"env.name={env}:Nothing", "env.options={}")
    assert code == 2
    assert [line for line in out.splitlines() if line.startswith("FAIL")] == [
        "FAIL  env       Nothing has no tasks in split 'train'"
    ]


def test_a_run_that_can_train(run_file: Path) -> None:
    code, out = check(run_file)
    assert code == 0
    assert "FAIL" not in out
    passed = [line.split()[1] for line in out.splitlines() if line.startswith("ok")]
    assert passed == ["config", "env", "model", "scheduler", "resources", "sandbox", "chat"]
    assert "Qwen3ForCausalLM" in out
    assert "3 steps of 2 groups x 8 attempts = 16 trajectories" in out
    assert "at most 2,048 sampled tokens a step" in out
    assert not (run_file.parent / "runs").exists()


def test_everything_that_would_stop_a_run_is_told_at_once(run_file: Path) -> None:
    code, out = check(
        run_file,
        "env.options.maxhops=3",
        "model={from: path, path: nowhere}",
        "runtime={rollout_workers: 4000}",
    )
    assert code == 2
    failed = [line.split()[1] for line in out.splitlines() if line.startswith("FAIL")]
    assert failed == ["env", "model", "resources"]
    assert "did you mean 'max_hops'" in out
    assert "no model at nowhere" in out
    assert "rollout_workers 4000" in out


def test_a_context_without_room_for_the_prompt(run_file: Path) -> None:
    code, out = check(
        run_file, "rollout={context_tokens: 20, max_turn_tokens: 16, max_trajectory_tokens: 20}"
    )
    assert code == 2
    assert "context_tokens 20 less rollout.max_turn_tokens 16 leaves 4 tokens" in out


def test_policies_that_do_not_take_their_options(run_file: Path) -> None:
    for policy in ("least_load", "buckets"):
        routing = f"{{policy: {policy}, options: {{stickyness: 1}}}}"
        code, out = check(run_file, f"scheduler.routing={routing}")
        assert code == 2
        assert "has no option ['stickyness']" in out
    code, out = check(
        run_file, "runtime.layout=elastic", "scheduler.shifting.options={patience: 3}"
    )
    assert code == 2
    assert "pay_back" in out
    assert "patience" in out


def test_a_warm_up_without_demonstrations(run_file: Path, tmp_path: Path) -> None:
    (tmp_path / "mute.py").write_text(
        "from agentrl import Env, Task, reward\n"
        "class Mute(Env):\n"
        "    @classmethod\n"
        "    def tasks(cls, split): return [Task(split)]\n"
        "    @reward\n"
        "    def none(self): return 0.0\n"
    )
    code, out = check(run_file, f"env={{name: '{tmp_path}/mute.py:Mute'}}", "warmup.steps=5")
    assert code == 2
    assert "warmup.steps is 5, and Mute has no demo()" in out


GENRM = "judge={type: genrm, model: {from: scratch}, warmup: {steps: 9}, brief: true}"


def test_a_judge_is_looked_at_before_it_judges(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out = check(run_file, "env={name: shop}", GENRM)
    assert code == 0
    assert "ok    judge     1 worker(s) of this run, scratch, 9 steps of warm-up" in out
    assert "would run 1 rollout, 1 GenRM and 1 training worker(s)" in out
    server = "judge={type: server, url: 'http://h/v1', model: m, api_key_env: JUDGE_KEY}"
    monkeypatch.setenv("JUDGE_KEY", "secret-of-mine")
    code, out = check(run_file, server)
    assert code == 0
    assert "ok    judge     m at http://h/v1" in out
    assert "secret-of-mine" not in out


def test_a_judge_that_cannot_judge_is_told(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = check(run_file, GENRM)
    assert code == 2
    assert "Trail.judge_questions() ended after 0 question(s)" in out
    code, out = check(run_file, "env={name: shop}", GENRM, "judge.context_tokens=130")
    assert code == 2
    assert "judge.context_tokens 130 is too little" in out
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    server = "judge={type: server, url: 'http://h/v1', model: m, api_key_env: JUDGE_KEY}"
    code, out = check(run_file, server)
    assert code == 2
    assert "environment variable JUDGE_KEY is not set" in out


def test_a_box_that_lacks_what_is_required(run_file: Path) -> None:
    code, out = check(run_file, "sandbox.require=[network]")
    assert code == 2
    (failed,) = [line for line in out.splitlines() if line.startswith("FAIL")]
    assert "does not enforce network" in failed


def test_an_unusable_file_ends_at_once(run_file: Path) -> None:
    code, out = check(run_file, "train.stepz=3")
    assert code == 2
    assert out == "error: --set train.stepz=3: unknown key `train.stepz`; did you mean `steps`?\n"
