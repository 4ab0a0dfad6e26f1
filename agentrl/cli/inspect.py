"""`agentrl inspect`: look at a run."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from agentrl.cli.errors import told_plainly

app = typer.Typer(no_args_is_help=True, help="Look at what happened in a run.")


@app.callback()
def inspect() -> None:
    """Look at what happened in a run."""


@app.command()
def show(
    address: Annotated[
        str,
        typer.Argument(
            metavar="RUN[/STEP[/GROUP[/TRAJECTORY]]]",
            help="A run's folder, or its name below runs/; then a step, a group's id or number, "
            "and an attempt's id or sibling number.",
        ),
    ],
    split: Annotated[
        Literal["train", "eval"] | None,
        typer.Option(help="Which attempts of a step; default: training when there are any."),
    ] = None,
) -> None:
    """Print a run, a step, a group, or one attempt turn by turn.

    Works while the run goes on. In a pipe it prints plain lines.
    """
    from rich.console import Console

    from agentrl.inspect.show import show_address

    with told_plainly():
        show_address(address, Console(), split=split)
