from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sample_trajectories import CONFIG_YAML, make_trajectory, record_run

from agentrl.inspect.show import show_address
from agentrl.record.writer import RunWriter
from agentrl.types import Judgement, Message, Outcome, RewardPart, StopReason, ToolCall, Turn


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_run(tmp_path_factory.mktemp("runs") / "demo", num_steps=3)


def printed(address: object, *, split: str | None = None, is_terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=is_terminal, color_system=None)
    show_address(str(address), console, split=split)
    return out.getvalue()


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_run_at_a_glance(run: Path) -> None:
    out = printed(run)
    assert "run demo: finished" in out
    assert "trail (max_hops 12)" in out
    assert "3 of 4" in out
    assert "24 finished" in out
    assert "▁▄█  0.333 -> 1" in out
    assert ["3", "1", "0.750", "8", "0", "-", "-", "-", "2"] in lines_of(out)


def test_a_step_lists_its_groups(run: Path) -> None:
    out = printed(f"{run}/2")
    assert "step 2, train: 2 groups, 8 attempts" in out
    (row,) = [line for line in lines_of(out) if "g000005" in line]
    assert row == ["1", "g000005", "task-1", "0", "1", "0", "1", "0.50", "-0.50", "..", "0.50",
                   "2", "6-12", "1-2", "trained"]  # fmt: skip


def test_evaluation_is_a_split_of_its_own(run: Path) -> None:
    assert "1 evaluation attempts" in printed(f"{run}/3")
    assert "step 3, eval: 1 groups, 1 attempts" in printed(f"{run}/3", split="eval")
    assert "evaluated" in printed(f"{run}/3", split="eval").splitlines()[-3]
    assert "group eval000003-00000" in printed(f"{run}/3/eval000003-00000")
    assert "none: evaluated after step 3" in printed(f"{run}/3/eval000003-00000/0")


def test_a_group_side_by_side(run: Path) -> None:
    by_id, by_number = printed(f"{run}/2/g000005"), printed(f"{run}/2/1")
    assert by_id == by_number
    assert "Follow the trail." in by_id
    rows = {line[0]: line[1:] for line in lines_of(by_id) if line}
    assert rows["reward"] in (["0", "1", "0"], ["1"])
    assert "cat file0" in by_id
    assert "-> next1" in by_id


def test_one_attempt_turn_by_turn(run: Path) -> None:
    out = printed(f"{run}/2/g000005/3")
    assert "g000005-3, sibling 3" in out
    assert "trained in step 2, advantage 0.500" in out
    assert "25: 5 prompt, 12 sampled, 8 tool; loss mask on 12, off 13" in out
    assert "versions 1 to 2" in out
    assert "rollout-0/default" in out
    assert "turn 1  (6 sampled, 4 tool)" in out
    assert '{"command": "cat file1"}' in out
    assert "result of shell, 0.250 s" in out
    assert "trainer_logprobs" in out
    assert printed(f"{run}/2/g000005/g000005-3") == out


def test_a_terminal_gets_tables_with_the_same_words(run: Path) -> None:
    for address in (run, f"{run}/2", f"{run}/2/1", f"{run}/2/1/0"):
        assert set(printed(address).split()) == set(printed(address, is_terminal=True).split())


def test_an_attempt_that_failed_says_why(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, CONFIG_YAML)
    bad_call = ToolCall("shell", error="arguments are not JSON")
    failed = make_trajectory(
        turns=(Turn(text="\x1b[31mhi\x00", calls=(bad_call,), is_truncated=True),),
        messages=(Message("user", "go\x1b]0;title\x07"),),
        outcome=Outcome.ENV_ERROR,
        stop_reason=StopReason.ENV_ERROR,
        error="Traceback\n  ZeroDivisionError\x1b[0m",
        reward=None,
        reward_parts=(RewardPart(name="judge", value=None, weight=2.0, rationale="no answer"),),
    )
    writer.trajectory(failed, step=1, dropped="env_error")
    row = failed.rows[0]
    writer.trajectory(make_trajectory(sibling=1, rows=(row, row), num_turns=1), step=1)
    writer.close()
    out = printed(f"{tmp_path}/1/0/0")
    assert "\x1b" not in out
    assert "\x00" not in out
    assert "env_error (env_error)" in out
    assert "not trained on: env_error" in out
    assert "not scored x 2: no answer" in out
    assert "not run: arguments are not JSON" in out
    assert "cut at a limit" in out
    assert "ZeroDivisionError\\x1b[0m" in out
    assert "2 rows (history rewritten)" in printed(f"{tmp_path}/1/0/1")
    assert "1 env_error, 1 trained" in printed(f"{tmp_path}/1")
    assert "≠" in printed(f"{tmp_path}/1/0")


def test_an_attempt_that_outlived_its_process_says_so(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "")
    writer.trajectory(make_trajectory(continued=2), step=1)
    writer.trajectory(make_trajectory(sibling=1, diverged="ls said more"), step=1)
    writer.close()
    assert ["after", "losses", "went", "on", "in", "another", "process,", "2", "times"] in lines_of(
        printed(f"{tmp_path}/1/0/0")
    )
    assert "begun anew: ls said more" in printed(f"{tmp_path}/1/0/1")


def test_what_a_judge_was_shown_and_said_is_there_to_read(tmp_path: Path) -> None:
    read = Judgement(
        judge="judge",
        kind="rubric",
        prompt="U mug\nA Bye\x1b[31m",
        answers=("what?", "polite: it only said bye => 0"),
        parts=(RewardPart(name="polite", value=0.0, rationale="it only said bye"),),
        served_by="genrm-0",
        num_tokens=41,
        seconds=0.5,
    )
    lost = Judgement(judge="judge", kind="score", prompt="", answers=(), error="no verdict in 9 s")
    part = RewardPart(name="manners", value=0.0, rationale="it only said bye")
    writer = RunWriter(tmp_path, CONFIG_YAML)
    writer.trajectory(
        make_trajectory(judgements=(read, lost), reward_parts=(part,)), step=1, dropped="unscored"
    )
    writer.close()
    out = printed(f"{tmp_path}/1/0/0")
    assert "manners" in out
    assert "0: it only said bye" in out
    assert "judge, rubric  (genrm-0, 41 tokens, 0.50 s)" in out
    assert "A Bye\\x1b[31m" in out
    assert out.index("answered, unreadable") < out.index("what?") < out.index("polite: it only")
    assert "no verdict in 9 s" in out


def test_a_run_that_was_lost_or_lacks_something_says_so(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, CONFIG_YAML)
    assert "running" in printed(tmp_path)
    writer.dropped["trajectory"] = 3
    writer.close()
    out = printed(tmp_path)
    assert "ended before its last step" in out
    assert "lacks 3 trajectory" in out


@pytest.mark.parametrize(
    ("below", "message"),
    [
        ("x", "step 'x' is not a number"),
        ("9", "no trajectories at step 9; it has steps 1 to 3"),
        ("2/g00005", "no group 'g00005'; did you mean 'g000005'?"),
        ("2/7", "no group '7'; groups here: g000004, g000005"),
        ("2/0/9", "no trajectory '9'; trajectories here: g000004-0, "),
    ],
)
def test_an_address_without_anything_says_what_is_there(
    run: Path, below: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        printed(f"{run}/{below}")


def test_a_run_is_known_by_its_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parents[1])
    (run.parents[1] / "runs").symlink_to(run.parent)
    assert "step 2, train" in printed("demo/2")
    with pytest.raises(ValueError, match="no run at 'demmo'; did you mean 'demo'"):
        printed("demmo")


def test_looking_at_a_run_needs_neither_torch_nor_ray() -> None:
    program = (
        "import sys; import agentrl.inspect.show, agentrl.cli.main; "
        "print([m for m in ('torch', 'ray', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert out.stdout.strip() == "[]"


def test_a_group_that_was_trained_on_again_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    writer = RunWriter(run, CONFIG_YAML)
    trajectory = make_trajectory("g000001")
    for step in (1, 2):
        writer.trajectory(make_trajectory(f"g00000{step}"), step=step, advantage=0.5)
    writer.replayed(2, "g000001", reuse=1, staleness=1)
    for step, ratio in ((1, 1.0), (2, 0.75)):
        columns = {"importance_ratios": np.full(trajectory.num_tokens, ratio, dtype=np.float32)}
        writer.training(step, columns, samples=[("g000001-0", trajectory.num_tokens)])
    writer.close()
    out = printed(f"{run}/1/g000001/0")
    assert "trained in step 1, advantage 0.500" in out
    assert "again in step 2 (reuse 1, 1 steps old)" in out
    assert "1.0000 to 1.0000" in out
    assert "0.7500 to 0.7500" in out
    assert "replayed: 1 groups of earlier steps" in printed(f"{run}/2")
    assert "replayed" not in printed(f"{run}/2/g000002/0")
