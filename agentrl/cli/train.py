"""`agentrl train`: run a configuration to its end, or go on with a run that was interrupted.

Exit codes: 0 all steps done, 1 the run failed, 2 the configuration cannot be used, 3 the run stood
still, 130 interrupted and saved.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.errors import told_plainly

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig
    from agentrl.record.layout import RunLayout
    from agentrl.runtime.display import Display, Summary

STALLED = 3
INTERRUPTED = 130


def train(
    config: Annotated[Path, typer.Argument(help="A run file, such as configs/quickstart.yaml.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Override a key; can be given many times."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run; default: the one in the file.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest run of that name.")
    ] = False,
    runs: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path("runs"),
) -> None:
    """Train a model by reinforcement in an environment.

    Ctrl-C once saves a checkpoint and ends; twice ends at once.
    """
    from agentrl.config.load import load_config
    from agentrl.record.layout import RunLayout, create_run_folder, newest_run_folder

    with told_plainly():
        given = [*(overrides or []), *([f"name={name}"] if name else [])]
        loaded = load_config(config, given)
        folder = (
            newest_run_folder(runs, loaded.name) if resume else create_run_folder(runs, loaded.name)
        )
        _run(loaded, RunLayout(folder))


def _run(config: RunConfig, layout: RunLayout) -> None:
    from rich.console import Console

    from agentrl.cli.progress import make_display, summary_lines
    from agentrl.record.log import logging_to
    from agentrl.runtime.watchdog import StalledRun

    console = Console()
    try:
        with (
            make_display(console) as display,
            logging_to(layout.log, print_line=display.warn),
        ):
            summary = asyncio.run(_interruptible(config, layout, display))
    except StalledRun as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(STALLED) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped at once; the newest checkpoint can be resumed", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    for line in summary_lines(summary):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not summary.is_complete:
        raise SystemExit(INTERRUPTED)


async def _interruptible(config: RunConfig, layout: RunLayout, display: Display) -> Summary:
    """The first Ctrl-C or SIGTERM asks the run to end, the second one cancels it."""
    from agentrl.runtime.session import train as run_to_the_end

    stop = asyncio.Event()
    running = asyncio.ensure_future(run_to_the_end(config, layout, display, stop))

    def on_signal() -> None:
        if stop.is_set():
            running.cancel()
        else:
            display.warn("finishing what is under way and saving; Ctrl-C again to stop at once")
            stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return await running
