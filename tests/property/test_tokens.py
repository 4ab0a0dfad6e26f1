"""Whatever is appended, rows stay aligned, sampled ids alone are marked, and contexts only grow."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.tokens import TokenBuilder
from agentrl.types import Origin, StopReason

ids = st.lists(st.integers(0, 300), max_size=6)
appends = st.lists(st.tuples(st.sampled_from(sorted(set(Origin) - {Origin.PROMPT})), ids))


def append(builder: TokenBuilder, origin: Origin, new: list[int], version: int) -> None:
    plain: dict[Origin, Callable[[list[int]], None]] = {
        Origin.TOOL: builder.tool,
        Origin.REPLY: builder.reply,
        Origin.SCAFFOLD: builder.scaffold,
    }
    if origin is Origin.SAMPLED:
        builder.sampled(new, [-i / 300 for i in new], [version] * len(new))
    else:
        plain[origin](new)


@given(prompt=ids.filter(bool), appends=appends)
def test_rows_hold_exactly_what_was_appended(
    prompt: list[int], appends: list[tuple[Origin, list[int]]]
) -> None:
    builder = TokenBuilder()
    builder.start(prompt)
    for version, (origin, new) in enumerate(appends):
        before = builder.context_ids
        append(builder, origin, new, version)
        assert builder.context_ids == before + new

    (row,) = builder.rows()
    expected = [(Origin.PROMPT, i, -1) for i in prompt] + [
        (origin, i, version if origin is Origin.SAMPLED else -1)
        for version, (origin, new) in enumerate(appends)
        for i in new
    ]
    assert np.concatenate([s.ids for s in row]).tolist() == [i for _, i, _ in expected]
    assert [s.origin for s in row for _ in s.ids] == [origin for origin, _, _ in expected]
    for segment in row:
        assert (segment.logprobs is not None) == (segment.origin is Origin.SAMPLED)
    versions = [v for s in row if s.policy_versions is not None for v in s.policy_versions]
    assert versions == [v for origin, _, v in expected if origin is Origin.SAMPLED]
    logprobs = [p for s in row if s.logprobs is not None for p in s.logprobs]
    assert np.allclose(logprobs, [-i / 300 for o, i, _ in expected if o is Origin.SAMPLED])
    assert builder.num_sampled == len(logprobs)


@given(prompt=ids.filter(bool), appends=appends)
def test_sampled_runs_are_turns(prompt: list[int], appends: list[tuple[Origin, list[int]]]) -> None:
    """Chunks of one turn make one segment; the text after it belongs to the same turn."""
    builder = TokenBuilder()
    builder.start(prompt)
    shown = []
    for origin, new in appends:
        append(builder, origin, new, 0)
        shown += [origin is Origin.SAMPLED] if new else []
    (row,) = builder.rows()
    sampled = [s for s in row if s.origin is Origin.SAMPLED]
    assert [s.turn for s in sampled] == list(range(len(sampled)))
    assert len(sampled) == sum(is_sampled for is_sampled, _ in groupby(shown))
    turns = [s.turn for s in row]
    assert turns == sorted(turns)
    assert builder.turn_ids == (sampled[-1].ids.tolist() if sampled else [])


@given(
    turn=st.integers(1, 20),
    trajectory=st.integers(1, 40),
    room=st.integers(1, 60),
    context=st.integers(0, 60),
    sampled=st.integers(0, 40),
)
def test_a_budget_is_the_least_of_its_three_limits(
    turn: int, trajectory: int, room: int, context: int, sampled: int
) -> None:
    limits = RolloutLimits(
        max_turn_tokens=turn, max_trajectory_tokens=trajectory, context_tokens=room
    )
    budget = limits.turn_budget(context=context, sampled=sampled)
    assert budget.tokens == min(turn, trajectory - sampled, room - context)
    assert (budget.reason is StopReason.CONTEXT_FULL) == (
        room - context < min(turn, trajectory - sampled)
    )
    assert limits.has_room(context=context, new=1) == (room - context - 1 > 0)


def test_an_empty_builder_has_no_rows() -> None:
    assert TokenBuilder().rows() == ()
