"""A run at a glance: what it is, whether it goes on, what it learned, what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import yaml

from agentrl.inspect.blocks import Block, Facts, Heading, Note, Sheet, number, one_line, sparkline
from agentrl.record.reader import RunReader
from agentrl.types import Json, Outcome

MAX_ROWS = 24
"""Steps listed; more are thinned out evenly."""

Line = dict[str, Json]


def overview(reader: RunReader) -> Iterator[Block]:
    config: dict[str, Any] = yaml.safe_load(reader.config_yaml) or {}
    lines = reader.metrics()
    steps = [line for line in lines if line.get("reward") is not None]
    evals = [line for line in lines if line.get("eval/reward") is not None]
    yield Heading(f"run {reader.info.name}: {status(reader)}")
    yield Facts(
        (
            ("folder", str(reader.layout.root)),
            ("env", _env(config)),
            ("model", str(config.get("model", {}).get("from", ""))),
            ("seed", str(config.get("seed", ""))),
            ("steps", _steps_done(steps, config)),
            ("reward", _curve([line["reward"] for line in steps])),
            ("eval reward", _curve([line["eval/reward"] for line in evals])),
            ("outcomes", _outcomes(lines)),
            ("record", _losses(reader)),
        )
    )
    yield from _step_table(lines)
    if last := max((line["step"] for line in lines), default=None):
        yield Note(f"\na step's groups:  agentrl inspect show {reader.layout.root}/{last}")


def status(reader: RunReader) -> str:
    launch = reader.info.launches[-1]
    started = datetime.fromtimestamp(launch.started_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if reader.summary is not None:
        word = "finished"
    elif launch.ended_s is not None:
        word = "ended before its last step"
    else:
        word = {
            True: "running",
            False: "lost (its process is gone)",
            None: "open, on another host",
        }[launch.is_alive]
    resumed = f", launch {len(reader.info.launches)}" if len(reader.info.launches) > 1 else ""
    return f"{word}; started {started} on {launch.host}{resumed}"


def _env(config: dict[str, Any]) -> str:
    env = config.get("env", {})
    options = ", ".join(f"{name} {value}" for name, value in env.get("options", {}).items())
    return one_line(f"{env.get('name', '')}{f' ({options})' if options else ''}", 200)


def _steps_done(steps: list[Line], config: dict[str, Any]) -> str:
    done = max((line["step"] for line in steps), default=0)
    return f"{done} of {config.get('train', {}).get('steps', '?')}"


def _curve(values: list[float]) -> str:
    if not values:
        return ""
    return f"{sparkline(values)}  {number(values[0])} -> {number(values[-1])}"


def _outcomes(lines: list[Line]) -> str:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(
            {
                name.removeprefix("outcomes/"): count
                for name, count in line.items()
                if name.startswith("outcomes/")
            }
        )
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _losses(reader: RunReader) -> str:
    """What the record itself lacks; silence would look like completeness."""
    lost: Counter[str] = Counter()
    for launch in reader.info.launches:
        lost.update(launch.dropped)
        lost.update(launch.failed)
    return ", ".join(f"lacks {count} {kind}" for kind, count in lost.items() if count)


def _step_table(lines: list[Line]) -> Iterator[Block]:
    steps: dict[int, Line] = {}
    for line in lines:
        steps.setdefault(line["step"], {}).update(line)
    if not steps:
        return
    shown = _thinned(sorted(steps), MAX_ROWS)
    yield Heading("steps" if len(shown) == len(steps) else f"steps ({len(shown)} of {len(steps)})")
    columns = ("step", "reward", "eval", "attempts", "lost", "traj/s", "tok/s", "stale", "seconds")
    yield Sheet(columns, tuple(_step_row(step, steps[step]) for step in shown))


def _step_row(step: int, line: Line) -> tuple[str, ...]:
    kept = (Outcome.FINISHED, Outcome.TRUNCATED)
    lost = sum(
        count
        for name, count in line.items()
        if name.startswith("outcomes/") and name.removeprefix("outcomes/") not in kept
    )
    return (
        str(step),
        number(line.get("reward")),
        number(line.get("eval/reward")),
        number(line.get("trajectories")),
        str(lost) if "trajectories" in line else "-",
        number(line.get("trajectories_per_s"), 1),
        number(line.get("tokens_per_s"), 0),
        number(line.get("staleness_mean"), 1),
        number(line.get("seconds"), 1),
    )


def _thinned(steps: list[int], limit: int) -> list[int]:
    """At most `limit` of them, evenly spaced, first and last included."""
    if len(steps) <= limit:
        return steps
    last = len(steps) - 1
    return [steps[round(i * last / (limit - 1))] for i in range(limit)]
