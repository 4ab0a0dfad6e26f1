"""`agentrl train`: run a configuration to its end, or go on with a run that was interrupted.

Exit codes: 0 all steps done, 1 the run failed, 2 the configuration cannot be used, 3 the run stood
still, 130 interrupted and saved.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.errors import told_plainly
from agentrl.cli.options import Overrides, RunFile

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig
    from agentrl.record.layout import RunLayout
    from agentrl.runtime.display import Display, Summary

FAILED = 1
STALLED = 3
INTERRUPTED = 130


def train(
    config: RunFile,
    overrides: Overrides = None,
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
        _refuse_early(loaded)
        make_folder = newest_run_folder if resume else create_run_folder
        _run(loaded, RunLayout(make_folder(runs.absolute(), loaded.name)))


def _refuse_early(config: RunConfig) -> None:
    """What can be found out in a moment, before a run folder is made."""
    from agentrl.config.checks import Conflicts, machine_conflicts
    from agentrl.registry import EnvRef
    from agentrl.runtime.judges import check_judge

    if conflicts := machine_conflicts(config, num_cores=len(os.sched_getaffinity(0))):
        raise Conflicts(conflicts)
    EnvRef(name=config.env.name, options=config.env.options).load()
    if config.warmup.steps:
        options = {**config.env.options, **config.warmup.env_options}
        EnvRef(name=config.env.name, options=options).load()
    check_judge(config)


def _run(config: RunConfig, layout: RunLayout) -> None:
    from rich.console import Console

    from agentrl.cli.progress import make_display, summary_lines
    from agentrl.record.log import logging_to
    from agentrl.runtime.failures import RunFailed, StalledRun
    from agentrl.train.checkpoint_folders import latest_checkpoint

    console = Console()
    try:
        with (
            make_display(console) as display,
            logging_to(layout.log, print_line=display.print),
        ):
            summary = asyncio.run(_interruptible(config, layout, display))
    except RunFailed as error:
        print(f"error: {error}\nrun: {layout.root}", file=sys.stderr)
        raise SystemExit(STALLED if isinstance(error, StalledRun) else FAILED) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        left = "the newest checkpoint" if latest_checkpoint(layout.checkpoints) else "the beginning"
        print(f"stopped at once; --resume goes on from {left}", file=sys.stderr)
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
