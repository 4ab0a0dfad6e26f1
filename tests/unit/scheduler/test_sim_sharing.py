"""Several jobs on one simulated fleet: closed forms, small steps of time, and the ways to share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from agentrl.cli.main import app
from scheduler.sim.share_policies import Partition, StrictTurns
from scheduler.sim.shared_fleet import (
    Batch,
    SharedFleet,
    SharedFleetRun,
    SharedJob,
    SharePolicy,
    ShareResult,
)
from scheduler.sim.sharing import best_partition, compare_sharing, read_sharing
from scheduler.slices import Slices, Tenant

FLEET = SharedFleet(num_slots=3, cold_s=5.0, warm_s=1.0, kept_states=2, tick_s=4.0)
CONFIG = Path(__file__).parents[3] / "configs/sim/plexrl_jobs.yaml"


def job(name: str, *steps: tuple[tuple[float, ...], float], seats: int = 2) -> SharedJob:
    batches = [Batch(attempts_s=attempts, train_slot_s=train) for attempts, train in steps]
    return SharedJob(name=name, batches=batches, max_running=seats, max_train_slots=2)


JOBS = [
    job("a", ((9.0, 3.0, 30.0, 8.0, 2.0), 12.0), ((7.0, 7.0, 41.0), 6.0)),
    job("b", ((4.0, 4.0, 4.0), 20.0), ((15.0, 2.0), 5.0), ((6.0,), 3.0), seats=1),
    job("c", ((50.0, 1.0, 1.0, 1.0), 2.0)),
]


def policy(kind: str) -> SharePolicy:
    if kind == "partition":
        return Partition({"a": 1, "b": 1, "c": 1})
    if kind == "turns":
        return StrictTurns(3, ["a", "b", "c"], 10.0)
    slices = Slices(grace_s=10.0)
    slices.add_slots(0.0, [f"s{i:02}" for i in range(3)])
    for name in "abc":
        slices.join(0.0, Tenant(job=name, wanted=0, slice_s=10.0))
    return slices


class Stepping(SharedFleetRun):
    """Small steps of time in place of skips from change to change."""

    STEP_S = 1 / 32

    def _until_change(self) -> float:
        return self.STEP_S


def played(kind: str, run: type[SharedFleetRun] = SharedFleetRun) -> ShareResult:
    return run(FLEET, JOBS, policy(kind), lends=kind == "slices").play()


def test_a_job_alone_takes_what_the_formula_says() -> None:
    alone = job("a", ((9.0, 3.0, 30.0, 8.0), 12.0))
    run = SharedFleetRun(FLEET, [alone], Partition({"a": 2}), lends=False)
    result = run.play()
    assert result.makespan_s == pytest.approx(5 + 30 + 12 / 2)
    # of three slots two decode while more than two attempts run, then one, and two train
    busy_s = 2 * 8 + 22 + 12
    assert result.bubble == pytest.approx(1 - busy_s / (3 * 41))


def test_attempts_wait_for_seats() -> None:
    alone = job("a", ((10.0, 20.0, 5.0), 0.0))
    run = SharedFleetRun(FLEET, [alone], Partition({"a": 1}), lends=False)
    assert run.play().makespan_s == pytest.approx(5 + 20)
    alone = job("a", ((10.0, 20.0, 15.0), 0.0))
    run = SharedFleetRun(FLEET, [alone], Partition({"a": 1}), lends=False)
    assert run.play().makespan_s == pytest.approx(5 + 10 + 15)


@pytest.mark.parametrize("kind", ["partition", "turns", "slices"])
def test_skipping_equals_small_steps_of_time(kind: str) -> None:
    """But for the steps themselves, after which ends and turns are noticed."""
    fleet = replace(FLEET, tick_s=Stepping.STEP_S) if kind != "partition" else FLEET
    skipping = SharedFleetRun(fleet, JOBS, policy(kind), lends=kind == "slices").play()
    stepping = played(kind, Stepping)
    for name, end_s in skipping.ended_s.items():
        assert stepping.ended_s[name] == pytest.approx(end_s, abs=1.0)
    assert stepping.bubble == pytest.approx(skipping.bubble, abs=0.03)
    assert stepping.cold_switches == skipping.cold_switches


@pytest.mark.parametrize("kind", ["partition", "turns", "slices"])
def test_all_work_is_done_once_whoever_shares(kind: str) -> None:
    result = played(kind)
    busy_s = (1 - result.bubble) * 3 * result.makespan_s
    training_s = sum(batch.train_slot_s for each in JOBS for batch in each.batches)
    most_s = training_s + sum(sum(b.attempts_s) for each in JOBS for b in each.batches)
    least_s = training_s + sum(
        sum(b.attempts_s) / each.max_running for each in JOBS for b in each.batches
    )
    assert least_s - 1e-6 <= busy_s <= most_s + 1e-6


def test_slices_fill_what_a_partition_leaves_idle() -> None:
    assert played("slices").bubble < played("partition").bubble
    assert played("slices").makespan_s < played("turns").makespan_s


def test_the_file_compares_the_ways() -> None:
    data = yaml.safe_load(CONFIG.read_text())
    settings = read_sharing({**data, "seeds": 1})
    partition = best_partition(settings)
    assert sum(partition.values()) == settings.fleet.num_slots
    rows = compare_sharing(settings)
    assert [row.policy for row in rows] == ["partition", "strict turns", "slices (ours)"]
    assert rows[0].vs_partition.mean == 1.0


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    data = yaml.safe_load(CONFIG.read_text())
    with pytest.raises(ValueError, match="2 slots"):
        read_sharing({**data, "fleet": {**data["fleet"], "num_slots": 2}})
    with pytest.raises(ValueError, match="no key"):
        read_sharing({**data, "color": "red"})
    result = CliRunner().invoke(app, ["simulate", str(CONFIG), "--trace", str(tmp_path)])
    assert result.exit_code == 2
