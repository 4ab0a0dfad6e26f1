"""`agentrl replay` on run folders whose log a simulated cluster has written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.config.dump import dump_config
from agentrl.config.fleet import DEFAULT_BUCKET
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.record.launches import Launch, RunInfo, write_run
from agentrl.record.layout import RunLayout
from agentrl.runtime.costs import Costs
from agentrl.runtime.scheduling import make_scheduler
from scheduler.costs import TrainCost, libra_shapes
from scheduler.decisions import Place
from scheduler.replay import LogEntry
from scheduler.sim.cluster import Cluster
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.specs import StepSpec, WorkerSpec
from scheduler.sim.workload import PRESETS, AgentWorkload

CONFIG = load_config(
    Path(__file__).parents[3] / "configs/quickstart.yaml",
    ["train.steps=2", "train.groups_per_step=3"],
)


OURS = load_config(
    Path(__file__).parents[3] / "configs/quickstart.yaml",
    [
        "train.steps=2",
        "train.groups_per_step=3",
        "scheduler.routing.policy=buckets",
        "scheduler.routing.options={estimator: hazard, explore: 0.2}",
    ],
)
COSTS = Costs(
    rollout={DEFAULT_BUCKET: libra_shapes(memory_share=0.85)[1]},
    genrm=None,
    training=TrainCost(per_token=1e-4),
    serving_start_s=1.0,
    training_start_s=1.0,
)


def launch(
    seed: int, num_steps: int, config: RunConfig = CONFIG, costs: Costs | None = None
) -> list[LogEntry]:
    log: list[LogEntry] = []
    shape = libra_shapes(memory_share=0.85)[1]
    Cluster(
        workers=[
            WorkerSpec(worker_id=f"w{i}", bucket=DEFAULT_BUCKET, shape=shape, max_running=3)
            for i in range(2)
        ],
        steps=StepSpec(num_steps=num_steps, groups_per_step=3, train_seconds=5.0),
        workload=AgentWorkload(model=PRESETS["search"], seed=seed, group_size=4),
        scheduler=make_scheduler(config, costs),
        faults=Faults(FaultModel(worker_mean_life_s=200.0), np.random.default_rng(seed)),
        listen=lambda event, decisions: log.append(LogEntry(event=event, decisions=decisions)),
    ).run()
    return log


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    layout = RunLayout(tmp_path)
    write_run(layout, RunInfo(name="x", launches=(Launch(first_step=1, started_s=0.0),)))
    layout.config.write_text(dump_config(CONFIG))
    return layout


def write_log(run: RunLayout, entries: list[LogEntry]) -> None:
    run.events.write_bytes(b"".join(entry.to_line() for entry in entries))


def replayed(run: RunLayout, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", str(run.root), *arguments])
    return result.exit_code, result.output


def test_every_launch_of_a_resumed_run_is_replayed(run: RunLayout) -> None:
    first, second = launch(1, 1), launch(2, 2)
    write_log(run, first + second)
    code, output = replayed(run)
    assert code == 0
    assert f"launch 1: {len(first)} events" in output
    assert f"launch 2: {len(second)} events" in output
    assert output.count(", identical") == 2


def test_a_difference_is_shown_with_its_line_and_later_launches_go_on(run: RunLayout) -> None:
    first, second = launch(1, 1), launch(2, 1)
    at = next(
        i
        for i, entry in enumerate(first)
        if i > 20 and entry.decisions and isinstance(entry.decisions[0], Place)
    )
    place = first[at].decisions[0]
    assert isinstance(place, Place)
    moved = replace(place, worker_id="elsewhere")
    first[at] = replace(first[at], decisions=(moved, *first[at].decisions[1:]))
    write_log(run, first + second)
    code, output = replayed(run)
    assert code == 1
    assert f"line {at + 1} of events.jsonl differs" in output
    assert '"worker_id":"elsewhere"' in output
    assert f'"worker_id":"{place.worker_id}"' in output
    assert f"launch 2: {len(second)} events" in output


def test_the_line_of_a_difference_counts_from_the_start_of_the_file(run: RunLayout) -> None:
    first, second = launch(1, 1), launch(2, 1)
    at = next(i for i, entry in enumerate(second) if entry.decisions)
    second[at] = replace(second[at], decisions=())
    write_log(run, first + second)
    assert f"line {len(first) + at + 1} of events.jsonl differs" in replayed(run)[1]


def test_forecasts_are_set_against_what_came(run: RunLayout) -> None:
    entries = launch(1, 2)
    write_log(run, entries)
    code, output = replayed(run, "--worst", "3", "--estimator", "hazard")
    assert code == 0
    assert "by 'hazard'" in output
    assert "50%: " in output
    assert sum(" x short" in line or " x long" in line for line in output.splitlines()) == 3


def test_ours_replays_with_its_random_share_and_its_own_estimator(run: RunLayout) -> None:
    run.config.write_text(dump_config(OURS))
    COSTS.save(run.costs)
    entries = launch(1, 2, OURS, COSTS)
    write_log(run, entries)
    code, output = replayed(run)
    assert (code, ", identical" in output, "by 'hazard'" in output) == (0, True, True)
    assert "turns of rollout on" in output
    places = [d for entry in entries for d in entry.decisions if isinstance(d, Place)]
    assert len({place.propensity for place in places}) > 1


def test_a_torn_last_line_does_not_exist(run: RunLayout) -> None:
    entries = launch(1, 1)
    write_log(run, entries)
    with run.events.open("ab") as log:
        log.write(entries[0].to_line()[:-5])
    code, output = replayed(run)
    assert (code, f"{len(entries)} events" in output) == (0, True)


def test_what_is_no_run_is_told_plainly(tmp_path: Path, run: RunLayout) -> None:
    assert CliRunner().invoke(app, ["replay", str(tmp_path / "none")]).exit_code == 2
    assert replayed(run)[0] == 2
    write_log(run, launch(1, 1))
    assert replayed(run, "--estimator", "tarot")[0] == 2
