"""Whatever a trajectory holds, the record gives it back, also from a file cut at any byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_trajectories import comparable, make_trajectory

from agentrl.record.codec import TOKEN, Fate, decode, encode, token_columns
from agentrl.record.jsonl import read_lines, to_line
from agentrl.record.reader import RunReader
from agentrl.record.writer import RunWriter
from agentrl.types import (
    Judgement,
    Message,
    Origin,
    Outcome,
    Placement,
    RewardPart,
    Segment,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
calls = st.builds(
    ToolCall, texts, st.dictionaries(texts, values, max_size=3), texts, st.none() | texts
)
results = st.builds(
    ToolResult,
    call_id=texts,
    name=texts,
    text=texts,
    status=st.sampled_from(["ok", "error", "timeout"]),
    seconds=numbers,
)
turns = st.builds(
    Turn,
    texts,
    st.lists(calls, max_size=2).map(tuple),
    texts,
    st.lists(results, max_size=2).map(tuple),
    st.none() | texts,
    numbers,
    st.booleans(),
)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    texts,
    st.lists(calls, max_size=1).map(tuple),
    texts,
    texts,
)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    origin, length = draw(st.sampled_from(Origin)), draw(st.integers(0, 5))
    integers = st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length)
    is_sampled = origin is Origin.SAMPLED
    logprobs = st.lists(st.floats(-50, 0, width=32), min_size=length, max_size=length)
    return Segment(
        origin=origin,
        turn=draw(st.integers(0, 9)),
        ids=np.array(draw(integers), np.int32),
        logprobs=np.array(draw(logprobs), np.float32) if is_sampled else None,
        policy_versions=np.array(draw(integers), np.int32) if is_sampled else None,
    )


parts = st.lists(
    st.builds(RewardPart, name=texts, value=st.none() | numbers, weight=numbers, rationale=texts),
    max_size=2,
).map(tuple)
trajectories = st.builds(
    Trajectory,
    trajectory_id=texts,
    task_id=texts,
    group_id=texts,
    sibling=st.integers(0, 99),
    attempt=st.integers(0, 3),
    split=texts,
    rows=st.lists(st.lists(segments(), max_size=3).map(tuple), max_size=2).map(tuple),
    turns=st.lists(turns, max_size=3).map(tuple),
    messages=st.lists(messages, max_size=2).map(tuple),
    reward=st.none() | numbers,
    reward_parts=parts,
    judgements=st.lists(
        st.builds(
            Judgement,
            judge=texts,
            kind=texts,
            prompt=texts,
            answers=st.lists(texts, max_size=2).map(tuple),
            parts=parts,
            error=st.none() | texts,
            served_by=texts,
            num_tokens=st.integers(0, 99),
            seconds=numbers,
        ),
        max_size=2,
    ).map(tuple),
    metrics=st.dictionaries(texts, numbers, max_size=2),
    stop_reason=st.sampled_from(StopReason),
    outcome=st.sampled_from(Outcome),
    error=st.none() | texts,
    placements=st.lists(
        st.builds(Placement, turn=st.integers(0, 9), worker_id=texts, bucket=texts), max_size=2
    ).map(tuple),
    seed=st.integers(0, 2**63 - 1),
    started_s=numbers,
    seconds=numbers,
    tool_seconds=numbers,
)
fates = st.builds(
    Fate, step=st.integers(0, 10**9), dropped=st.none() | texts, advantage=st.none() | numbers
)


@given(trajectories, fates)
@settings(deadline=None)
def test_a_trajectory_comes_back_equal(trajectory: Trajectory, fate: Fate) -> None:
    tokens = token_columns(trajectory)
    line = orjson.loads(to_line(encode(trajectory, fate, tokens)))
    back = decode(line, {name: tokens[name] for name in TOKEN.names or ()})
    assert comparable(back) == comparable(trajectory)


anything = st.recursive(
    st.text(max_size=5)  # lone surrogates too
    | st.binary(max_size=5)
    | st.integers()
    | st.floats()
    | st.sampled_from([np.int8(1), np.float32(0.5), np.bool_(False), np.arange(3)]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.none(), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


@given(anything)
@settings(deadline=None)
def test_any_value_makes_one_line_that_stays_as_it_is(value: object) -> None:
    line = to_line(value)
    assert line.count(b"\n") == 1
    assert to_line(orjson.loads(line)) == line


@given(st.lists(st.dictionaries(texts, values, max_size=2), max_size=5), st.data())
@settings(deadline=None)
def test_a_file_cut_anywhere_gives_its_whole_lines(
    lines: list[dict[str, object]], data: st.DataObject
) -> None:
    encoded = [to_line(line) for line in lines]
    whole = b"".join(encoded)
    cut = data.draw(st.integers(0, len(whole)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(whole[:cut])
        read = [line for _, line in read_lines(path)]
    num_whole = whole[:cut].count(b"\n")
    assert [to_line(line) for line in read] == encoded[:num_whole]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=6))
@settings(max_examples=15, deadline=None)
def test_launches_supersede_what_they_do_again(steps_of_launches: list[tuple[int, int]]) -> None:
    """Each launch begins at some step and does a few; the newest launch of a step counts."""
    expected: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (first_step, num_steps) in enumerate(steps_of_launches):
            writer = RunWriter(Path(folder), "seed: 0\n", first_step=first_step)
            expected = {step: name for step, name in expected.items() if step < first_step}
            for step in range(first_step, first_step + num_steps):
                expected[step] = f"launch{number}"
                writer.trajectory(make_trajectory(f"launch{number}"), step=step)
            writer.close()
        if steps_of_launches:
            rows = RunReader(Path(folder)).rows()
            assert {row.step: row.group_id for row in rows} == expected
            assert len(rows) == len(expected)
