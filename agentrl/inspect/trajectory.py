"""One attempt, turn by turn: what was said, done, answered, scored, and which tokens count."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.inspect.blocks import NOTHING, Block, Facts, Heading, Passage, number, visible
from agentrl.record.index import IndexRow
from agentrl.record.reader import RecordedTrajectory, Replay, RunReader
from agentrl.types import Judgement, Origin, Row, Segment, ToolCall, Trajectory, Turn


def trajectory_view(reader: RunReader, row: IndexRow) -> Iterator[Block]:
    recorded = reader.trajectory(row)
    trajectory = recorded.trajectory
    is_trained = recorded.row.fate == "trained"
    replays = reader.replays(group_id=trajectory.group_id) if is_trained else []
    title = f"trajectory {trajectory.trajectory_id}, sibling {trajectory.sibling}"
    yield Heading(f"{title} of group {trajectory.group_id} at step {row.step}")
    yield Facts(
        (
            *score(trajectory).pairs,
            ("training", _fate(recorded)),
            ("replayed", ", ".join(_replay(replay) for replay in replays)),
            ("weights", _range(row.policy_versions)),
            ("placed", _placements(trajectory)),
            ("after losses", _after_losses(trajectory)),
        )
    )
    yield from _trained(reader, recorded, recorded.fate.step)
    for replay in replays:
        yield Heading(_replay(replay))
        yield from _trained(reader, recorded, replay.step)
    yield from conversation(trajectory)


def conversation(trajectory: Trajectory) -> Iterator[Block]:
    """All that was said and done, and the error that ended it, if one did."""
    for message in trajectory.messages:
        yield Passage(f"\n{message.role}", visible(message.content))
    for index, turn in enumerate(trajectory.turns):
        yield from _turn(trajectory, index, turn)
    for judgement in trajectory.judgements:
        yield from _judgement(judgement)
    if trajectory.error:
        yield Passage("\nerror", visible(trajectory.error))


def score(trajectory: Trajectory) -> Facts:
    """What it was worth, and how it ended."""
    parts = trajectory.reward_parts
    metrics = (f"{visible(name)} {number(value)}" for name, value in trajectory.metrics.items())
    return Facts(
        (
            ("task", visible(trajectory.task_id)),
            ("reward", number(trajectory.reward)),
            *((f"  {visible(p.name)}", _part(p.value, p.weight, p.rationale)) for p in parts),
            ("outcome", f"{trajectory.outcome} ({trajectory.stop_reason})"),
            ("metrics", ", ".join(metrics)),
            ("tokens", _token_counts(trajectory)),
            ("time", _time(trajectory)),
        )
    )


def answers(turn: Turn) -> Iterator[Block]:
    """What a turn was told: the result of each call, or a reply."""
    for result in turn.results:
        status = "" if result.status == "ok" else f" [{result.status}]"
        speaker = f"result of {visible(result.name)}{status}, {result.seconds:.3f} s"
        yield Passage(speaker, visible(result.text.rstrip("\n")))
    if turn.reply is not None:
        yield Passage("reply", visible(turn.reply))


def _turn(trajectory: Trajectory, index: int, turn: Turn) -> Iterator[Block]:
    segments = [s for row in trajectory.rows for s in row if s.turn == index]
    marks = [_segment_counts(segments)]
    if turn.reward:
        marks.append(f"reward {number(turn.reward)}")
    if turn.is_truncated:
        marks.append("cut at a limit, so no call ran")
    yield Heading(f"turn {index}  ({', '.join(filter(None, marks))})")
    if turn.reasoning:
        yield Passage("reasoning", visible(turn.reasoning))
    if turn.text or not turn.calls:
        yield Passage("assistant", visible(turn.text) or NOTHING)
    for call in turn.calls:
        yield Passage(f"call {visible(call.name)}", visible(_call(call)))
    yield from answers(turn)


def _judgement(judgement: Judgement) -> Iterator[Block]:
    """What a judge was shown, and all it said; the last answer is the one that was read."""
    marks = [visible(judgement.served_by), f"{judgement.num_tokens} tokens"]
    marks.append(f"{judgement.seconds:.2f} s")
    title = f"{visible(judgement.judge)}, {visible(judgement.kind)}"
    yield Heading(f"{title}  ({', '.join(filter(None, marks))})")
    yield Passage("was shown", visible(judgement.prompt))
    for place, answer in enumerate(judgement.answers, start=1):
        is_read = place == len(judgement.answers) and judgement.error is None
        yield Passage("answered" if is_read else "answered, unreadable", visible(answer) or NOTHING)
    if judgement.error:
        yield Passage("no verdict", visible(judgement.error))


def _call(call: ToolCall) -> str:
    if call.error is not None:
        return f"not run: {call.error}"
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def _part(value: float | None, weight: float, rationale: str) -> str:
    times = "" if weight == 1 else f" x {number(weight)}"
    reason = f": {visible(rationale)}" if rationale else ""
    return f"{'not scored' if value is None else number(value)}{times}{reason}"


def _fate(recorded: RecordedTrajectory) -> str:
    fate = recorded.fate
    if recorded.trajectory.split != "train":
        return f"none: evaluated after step {fate.step}"
    if fate.dropped is not None:
        return f"not trained on: {fate.dropped}"
    return f"trained in step {fate.step}, advantage {number(fate.advantage)}"


def _token_counts(trajectory: Trajectory) -> str:
    """How many tokens there are of each origin, and which of them the loss sees."""
    segments = [segment for row in trajectory.rows for segment in row]
    masked = trajectory.num_tokens - trajectory.num_sampled_tokens
    forks = f"; {len(trajectory.rows)} rows (history rewritten)" if len(trajectory.rows) > 1 else ""
    return (
        f"{trajectory.num_tokens}: {_segment_counts(segments)}; "
        f"loss mask on {trajectory.num_sampled_tokens}, off {masked}{forks}"
    )


def _segment_counts(segments: list[Segment]) -> str:
    counts: Counter[Origin] = Counter()
    for segment in segments:
        counts[segment.origin] += len(segment)
    return ", ".join(f"{counts[origin]} {origin}" for origin in Origin if counts[origin])


def _range(versions: tuple[int, int] | None) -> str:
    if versions is None:
        return ""
    oldest, newest = versions
    return f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"


def _placements(trajectory: Trajectory) -> str:
    places = [f"{p.worker_id}/{p.bucket}" for p in trajectory.placements]
    runs = [place for i, place in enumerate(places) if i == 0 or places[i - 1] != place]
    return " -> ".join(runs)


def _after_losses(trajectory: Trajectory) -> str:
    """What became of it when the process that played it was lost."""
    if trajectory.diverged:
        return f"begun anew: {visible(trajectory.diverged)}"
    times = trajectory.continued
    return f"went on in another process, {times} time{'s'[: times > 1]}" if times else ""


def _time(trajectory: Trajectory) -> str:
    started = datetime.fromtimestamp(trajectory.started_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{started}, {trajectory.seconds:.2f} s, of which tools {trajectory.tool_seconds:.2f} s"


def _replay(replay: Replay) -> str:
    return f"again in step {replay.step} (reuse {replay.reuse}, {replay.staleness} steps old)"


def _trained(reader: RunReader, recorded: RecordedTrajectory, step: int) -> Iterator[Block]:
    """How the trainer saw its sampled tokens in a step, when it did."""
    trajectory = recorded.trajectory
    columns = reader.training(step, trajectory.trajectory_id)
    if columns is None:
        return
    trained_rows = [row for row in trajectory.rows if _num_sampled(row)]
    mask = np.concatenate(
        [np.full(len(s), s.origin is Origin.SAMPLED) for row in trained_rows for s in row]
    )
    yield Facts(tuple((name, _spread(column[mask])) for name, column in columns.items()))


def _num_sampled(row: Row) -> int:
    return sum(len(segment) for segment in row if segment.origin is Origin.SAMPLED)


def _spread(sampled: NDArray[Any]) -> str:
    if sampled.dtype == np.bool_:
        return f"{int(sampled.sum())} of {len(sampled)} tokens"
    return f"{sampled.min():.4f} to {sampled.max():.4f}, mean {sampled.mean():.4f}"
