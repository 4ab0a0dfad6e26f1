"""`agentrl simulate`: scheduling policies side by side, on made-up agents or on a recorded run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from agentrl.cli.errors import told_plainly

if TYPE_CHECKING:
    from scheduler.sim.report import Row
    from scheduler.sim.run import Comparison, MakeWorkload
    from scheduler.sim.settings import SimulationSettings


def simulate(
    config: Annotated[Path, typer.Argument(help="A file such as configs/sim/scarce_slots.yaml.")],
    trace: Annotated[
        Path | None,
        typer.Option(help="A run folder: simulate its recorded agents instead of made-up ones."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Paired seeds to measure on.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.html and report.json.")
    ] = None,
) -> None:
    """Compare scheduling policies in simulation: which fleet, which policy, how much it brings.

    Every policy is tuned on seeds of its own and measured on the same fresh ones.
    """
    with told_plainly():
        _simulate(config, trace, seeds, out)


def _simulate(config: Path, trace: Path | None, seeds: int | None, out: Path | None) -> None:
    from scheduler.sim.report import rows_of
    from scheduler.sim.run import compare, workload_of
    from scheduler.sim.settings import read_settings

    data = _read(config, seeds)
    if "jobs" in data:
        if trace is not None or out is not None:
            raise ValueError(f"{config} has jobs: --trace and --out are for files with policies")
        _share(data)
        return
    settings = read_settings(data)
    workload = workload_of(settings) if trace is None else _recorded(trace)
    comparison = compare(settings, workload, tell=lambda line: print(line, flush=True))
    _print_table(settings, rows_of(comparison))
    if out is not None:
        _write(out, comparison, workload)
        print(f"written: {out / 'report.html'}, {out / 'report.json'}")


def _read(config: Path, seeds: int | None) -> dict[str, Any]:
    if not config.is_file():
        raise ValueError(f"no simulation file {config}; configs/sim/ has some")
    data: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8"))
    return data if seeds is None else {**data, "seeds": seeds}


def _share(data: dict[str, Any]) -> None:
    """Several jobs on one fleet."""
    from rich.console import Console
    from rich.table import Table

    from scheduler.sim.sharing import HEADINGS, cells_of, compare_sharing, read_sharing

    settings = read_sharing(data)
    rows = compare_sharing(settings, tell=lambda line: print(line, flush=True))
    table = Table(title=f"{settings.name}: {settings.seeds} paired seeds, simulated")
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*cells_of(row))
    Console(width=120).print(table)


def _recorded(run: Path) -> MakeWorkload:
    from scheduler.replay import read_log
    from scheduler.sim.trace import RecordedWorkload, recorded_groups

    log = run / "events.jsonl"
    if not log.is_file():
        raise ValueError(f"{run} is not a run folder: it has no events.jsonl")
    with log.open("rb") as lines:
        groups = tuple(recorded_groups(read_log(lines)))
    if not groups:
        raise ValueError(f"{log} holds no finished attempt of training, so nothing to simulate")
    return lambda seed: RecordedWorkload(groups=groups, seed=seed)


def _print_table(settings: SimulationSettings, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    from scheduler.sim.report import HEADINGS, cells_of

    table = Table(
        title=f"{settings.name}: baseline {settings.baseline}, {settings.seeds} paired seeds, "
        "simulated"
    )
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i < 2 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*cells_of(row))
    Console(width=200).print(table)


def _write(out: Path, comparison: Comparison, workload: MakeWorkload) -> None:
    from scheduler.sim.charts import Occupancy, speedup_bars
    from scheduler.sim.report import rows_of, to_html, to_json
    from scheduler.sim.run import simulate as run_once

    charts = [("Times faster than the baseline", speedup_bars(rows_of(comparison)))]
    for result in comparison.results:
        occupancy = Occupancy(slice_s=result.figures[0].seconds / 200)
        run_once(comparison.settings, workload, result.policy, result.choice, 0, occupancy)
        charts.append((f"{result.policy}: turns running by worker and time", occupancy.to_svg()))
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.html").write_text(to_html(comparison, charts), encoding="utf-8")
    text = json.dumps(to_json(comparison), indent=1)
    (out / "report.json").write_text(text, encoding="utf-8")
