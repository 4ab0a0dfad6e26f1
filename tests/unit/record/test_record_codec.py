from __future__ import annotations

from typing import Any

import orjson
from sample_trajectories import comparable, make_trajectory

from agentrl.record.codec import TOKEN, Fate, decode, decode_fate, encode, token_columns
from agentrl.record.jsonl import to_line
from agentrl.types import Message, Outcome, StopReason, ToolCall, Trajectory, Turn


def through_disk(trajectory: Trajectory) -> Trajectory:
    tokens = token_columns(trajectory)
    line = orjson.loads(to_line(encode(trajectory, Fate(step=1), tokens)))
    return decode(line, {name: tokens[name] for name in TOKEN.names or ()})


def test_a_trajectory_comes_back_equal() -> None:
    trajectory = make_trajectory()
    assert comparable(through_disk(trajectory)) == comparable(trajectory)


def test_forks_errors_and_empty_attempts_come_back_equal() -> None:
    row = make_trajectory().rows[0]
    forked = make_trajectory(rows=(row, row[:2], ()))
    failed = make_trajectory(
        rows=(),
        turns=(Turn(text="", calls=(ToolCall("shell", error="bad JSON"),), is_truncated=True),),
        messages=(Message("assistant", "x", (ToolCall("shell", {"a": [1, {"b": None}]}, "1"),)),),
        reward=None,
        outcome=Outcome.ENV_ERROR,
        stop_reason=StopReason.ENV_ERROR,
        error="Traceback\n  boom",
    )
    for trajectory in (forked, failed):
        assert comparable(through_disk(trajectory)) == comparable(trajectory)


def test_numbers_that_json_lacks_become_unscored_or_nan() -> None:
    back = through_disk(make_trajectory(reward=float("inf"), metrics={"m": float("nan")}))
    assert back.reward is None
    assert back.metrics["m"] != back.metrics["m"]


def test_text_is_stored_once() -> None:
    line = to_line(line_of(make_trajectory(messages=(Message("user", "only-here"),))))
    assert line.count(b"only-here") == 1
    assert line.count(b"next0") == 1


def test_a_line_says_what_became_of_the_attempt() -> None:
    fate = Fate(step=12, dropped="zero_variance", advantage=0.5)
    line = line_of(make_trajectory(), fate)
    assert decode_fate(line) == fate
    assert (line["step"], line["dropped"], line["advantage"]) == (12, "zero_variance", 0.5)
    assert line["policy_versions"] == (1, 2)
    assert (line["num_turns"], line["num_tokens"], line["num_sampled_tokens"]) == (2, 19, 6)


def line_of(trajectory: Trajectory, fate: Fate | None = None) -> dict[str, Any]:
    return encode(trajectory, fate or Fate(step=1), token_columns(trajectory))
