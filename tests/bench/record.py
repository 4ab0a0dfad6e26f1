"""What record and journal cost a run, as a share of its step time.

    python tests/bench/record.py [--steps 3] [--run RUN] [--repeats 20] [--set key=value ...]

Runs `agentrl train configs/quickstart.yaml` for some steps, or takes the run that is given, and writes
all that its training attempts left once more: through the journal, line by line as runners do, and
through the record's writer, as the driver does. The CPU time that takes, of all threads and of the
kernel, divided by the time of the run's steps is the share. Steps are wall clock, and the first is left
out: it is filled while workers start.

The last line is one JSON object: `record_share`, its parts, and CPU microseconds an attempt.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from agentrl.record.journal import Answer, JournaledAttempt, SampledTurn, ended_attempt
from agentrl.record.journal_writer import JournalWriter
from agentrl.record.layout import create_run_folder
from agentrl.record.reader import RecordedTrajectory, RunReader
from agentrl.record.writer import RunWriter
from agentrl.types import Origin, Trajectory

ROOT = Path(__file__).parents[2]


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.run or train(Path(folder), arguments.steps, arguments.overrides)
        reader = RunReader(run)
        steps = {line["step"]: line["seconds"] for line in reader.metrics() if "train_s" in line}
        del steps[min(steps)]
        rows = [row for row in reader.rows(split="train") if row.step in steps]
        recorded = [reader.trajectory(row) for row in rows]
        columns = reader.layout.training_step(max(steps)).stat().st_size // 13
        repeats = range(arguments.repeats)
        journal_s = min(journal_cpu_s(Path(folder), n, recorded) for n in repeats)
        record_s = min(record_cpu_s(Path(folder), recorded, columns, len(steps)) for _ in repeats)
    wall_s = sum(steps.values())
    figures = {
        "record_share": (journal_s + record_s) / wall_s,
        "journal_share": journal_s / wall_s,
        "journal_us_per_attempt": 1e6 * journal_s / len(recorded),
        "record_us_per_attempt": 1e6 * record_s / len(recorded),
        "attempts": len(recorded),
        "turns_per_attempt": sum(row.num_turns for row in rows) / len(rows),
        "seconds_per_step": wall_s / len(steps),
    }
    print(json.dumps({name: round(value, 6) for name, value in figures.items()}))


def train(folder: Path, num_steps: int, overrides: Sequence[str]) -> Path:
    config = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    config["train"]["steps"] = num_steps
    config["eval"] = {"every_steps": 0, "tasks": 8}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    agentrl = str(Path(sys.executable).with_name("agentrl"))
    given = [part for override in overrides for part in ("--set", override)]
    subprocess.run([agentrl, "train", str(path), *given], cwd=folder, check=True)
    return folder / "runs" / config["name"]


def journal_cpu_s(folder: Path, number: int, recorded: Sequence[RecordedTrajectory]) -> float:
    prepared = [
        (one.trajectory, opening_of(one.trajectory), list(turns_of(one.trajectory)))
        for one in recorded
    ]
    journal = JournalWriter(folder / "journal", number=number, name="bench")
    begun = time.process_time()
    for trajectory, opening, turns in prepared:
        name = trajectory.trajectory_id
        journal.opened(opening)
        for turn, (sampled, answer) in enumerate(turns):
            journal.turn(name, turn, sampled, seconds=1.0, tool_seconds=0.5)
            journal.answer(name, turn, answer, seconds=1.0, tool_seconds=0.5)
        journal.end(trajectory)
    journal.forget(lambda kept: True)
    return time.process_time() - begun


def record_cpu_s(
    folder: Path, recorded: Sequence[RecordedTrajectory], num_tokens: int, num_steps: int
) -> float:
    """Attempts, and for each step the trainer's columns of `num_tokens` tokens."""
    columns = {
        **{
            name: np.zeros(num_tokens, np.float32)
            for name in ("advantages", "trainer_logprobs", "importance_ratios")
        },
        "is_clipped": np.zeros(num_tokens, bool),
    }
    writer = RunWriter(create_run_folder(folder, "bench"), "")
    begun = time.process_time()
    for one in recorded:
        fate = one.fate
        writer.trajectory(
            one.trajectory, step=fate.step, dropped=fate.dropped, advantage=fate.advantage
        )
    for step in range(num_steps):
        writer.training(step, columns)
        writer.metrics({"step": step, **{f"metric/{n}": 0.5 for n in range(50)}})
    writer.close()
    return time.process_time() - begun


def opening_of(trajectory: Trajectory) -> JournaledAttempt:
    prompt_ids = trajectory.rows[0][0].ids.tolist() if trajectory.rows else []
    return replace(ended_attempt(trajectory), prompt_ids=prompt_ids, ended=None)


def turns_of(trajectory: Trajectory) -> Iterator[tuple[SampledTurn, Answer]]:
    segments = [segment for row in trajectory.rows for segment in row]
    for number, turn in enumerate(trajectory.turns):
        of_turn = [segment for segment in segments if segment.turn == number]
        (sampled,) = (segment for segment in of_turn if segment.origin is Origin.SAMPLED)
        assert sampled.logprobs is not None
        assert sampled.policy_versions is not None
        read = [s.ids for s in of_turn if s.origin in (Origin.TOOL, Origin.REPLY)]
        ids = [int(i) for segment_ids in read for i in segment_ids]
        yield (
            SampledTurn(
                ids=sampled.ids.tolist(),
                logprobs=sampled.logprobs.tolist(),
                policy_versions=sampled.policy_versions.tolist(),
                said=turn,
            ),
            Answer(results=turn.results, reply=turn.reply, ids=ids),
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--run", type=Path, help="a run folder, instead of a run of its own")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    return parser.parse_args()


if __name__ == "__main__":
    main()
