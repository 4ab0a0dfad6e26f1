"""`agentrl replay`: does a recorded run's scheduler decide the same again, and were lengths foreseen?

`events.jsonl` holds every launch of a run, one after the other, and a launch begins anew whenever the
coordinator did: its numbers start over. Each is fed to a fresh scheduler with the run's settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from agentrl.cli.errors import told_plainly

if TYPE_CHECKING:
    from rich.console import Console

    from agentrl.config.run import RunConfig
    from agentrl.record.layout import RunLayout
    from scheduler.estimators.accuracy import ForecastCheck, Scored
    from scheduler.gauges import GaugeReport
    from scheduler.replay import LogEntry, ReplayReport

DIFFERS = 1
"""Exit code when some decision came out in another way."""


def replay(
    run: Annotated[Path, typer.Argument(help="A run's folder, such as runs/quickstart.")],
    estimator: Annotated[
        str | None,
        typer.Option(
            help="Whose forecasts of lengths to check; default: the run's own, if it has one."
        ),
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="Attempts to list, worst forecast first.")] = 5,
) -> None:
    """Feed a run's recorded events to a fresh scheduler and compare every decision.

    Says `identical`, or shows the first decision that differs with its line in events.jsonl and
    ends with code 1. Then tells where forecast and real lengths of attempts parted, and how far off
    the cost models were.
    """
    with told_plainly():
        is_identical = _replay(run, estimator, worst)
    if not is_identical:
        raise SystemExit(DIFFERS)


def _replay(run: Path, asked: str | None, worst: int) -> bool:
    from rich.console import Console

    from agentrl.config.load import load_config
    from agentrl.record.launches import read_run
    from agentrl.record.layout import RunLayout
    from scheduler.estimators.choose import DEFAULT

    layout = RunLayout(run)
    read_run(layout)
    config = load_config(layout.config)
    estimator = asked or str(config.scheduler.routing.options.get("estimator", DEFAULT))
    console = Console(highlight=False, soft_wrap=True, markup=False)
    scored: list[Scored] = []
    costs: dict[str, GaugeReport] = {}
    is_identical = True
    for number, launch in enumerate(_replays(layout, config, estimator), start=1):
        is_identical = is_identical and launch.report.difference is None
        _print_report(console, number, launch.report, launch.last_line)
        scored += launch.check.scored
        costs = launch.costs
    if scored and worst:
        _print_forecasts(console, estimator, scored, worst)
    if costs:
        _print_costs(console, costs)
    return is_identical


class _Replayed(NamedTuple):
    check: ForecastCheck
    report: ReplayReport
    last_line: int
    """Of the log, that was compared."""
    costs: dict[str, GaugeReport]
    """Those of earlier launches included, where the launch was a resumed one."""


def _replays(layout: RunLayout, config: RunConfig, estimator: str) -> Iterator[_Replayed]:
    """Each launch of the run, by a fresh scheduler."""
    from agentrl.runtime.scheduling import make_scheduler, recorded_costs
    from scheduler.estimators.accuracy import ForecastCheck
    from scheduler.estimators.choose import make_estimator
    from scheduler.replay import read_log, replay

    first_line = 1
    costs = recorded_costs(layout.costs)
    if not layout.events.exists():
        raise ValueError(f"{layout.root} has no {layout.events.name}: nothing was decided yet")
    with layout.events.open("rb") as log:
        for launch in split_launches(read_log(log)):
            check = ForecastCheck(make_estimator(estimator))
            scheduler = make_scheduler(config, costs, observers=(check,))
            report = replay(scheduler, launch)
            last_line = first_line + report.num_events - 1
            yield _Replayed(check, report, last_line, scheduler.calibration.reports())
            first_line += report.num_events + sum(1 for _ in launch)


def split_launches(log: Iterable[LogEntry]) -> Iterator[Iterator[LogEntry]]:
    """One iterator a launch: `seq` rises inside a launch and begins again with the next."""
    number, last_seq = 0, -1

    def launch_of(entry: LogEntry) -> int:
        nonlocal number, last_seq
        number += entry.event.seq <= last_seq
        last_seq = entry.event.seq
        return number

    return (entries for _, entries in groupby(log, key=launch_of))


def _print_report(console: Console, number: int, report: ReplayReport, line: int) -> None:
    counts = f"launch {number}: {report.num_events} events, {report.num_decisions} decisions"
    difference = report.difference
    if difference is None:
        console.print(f"{counts}, identical")
        return
    from scheduler.codec import to_json

    console.print(f"{counts}, and line {line} of events.jsonl differs")
    console.print(f"  event     {to_json(difference.event).decode()}")
    for name, decisions in (("recorded", difference.recorded), ("replayed", difference.replayed)):
        for decision in decisions:
            console.print(f"  {name}  {to_json(decision).decode()}")
        if not decisions:
            console.print(f"  {name}  nothing")
    console.print(
        "  config.yaml holds the settings of the last launch; an earlier one may have had others, "
        "and another version of agentrl may decide in another way."
    )


def _print_forecasts(
    console: Console, estimator: str, scored: Sequence[Scored], number: int
) -> None:
    from rich.table import Table

    from scheduler.estimators.accuracy import accuracy_of, worst_attempts

    accuracy = accuracy_of(scored)
    console.print(
        f"\nforecasts of tokens still to be sampled, by {estimator!r}, learning as the run went on: "
        f"{accuracy.num_forecasts}, off by {2**accuracy.log2_error:.1f} x on average"
    )
    shares = "  ".join(f"{q:.0%}: {share:.0%}" for q, share in accuracy.calibration)
    console.print(f"real lengths below the forecast quantile  {shares}  (equal when calibrated)")
    table = Table("attempt", "at turn", "forecast tokens", "real tokens", "off by")
    for one in worst_attempts(scored, number):
        table.add_row(
            one.trajectory_id,
            str(one.turn),
            f"{one.forecast_tokens:.0f}",
            str(one.real_tokens),
            f"{2 ** abs(one.log2_error):.1f} x {'short' if one.log2_error < 0 else 'long'}",
        )
    console.print(table)


def _print_costs(console: Console, costs: dict[str, GaugeReport]) -> None:
    from rich.table import Table

    console.print("\nseconds of work, predicted by what had been learned by then, against observed")
    table = Table()
    table.add_column("work", no_wrap=True)
    for heading in ("observed", "off by", "off before learning", "observed / told"):
        table.add_column(heading, justify="right")
    for name, report in costs.items():
        told = report.error_before is not None
        table.add_row(
            name,
            str(report.num_observed),
            "-" if report.error is None else f"{report.error:.0%}",
            f"{report.error_before:.0%}" if told else "not told",
            f"{report.scale:.2f}" if told else "-",
        )
    console.print(table)
