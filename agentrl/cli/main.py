"""The command `agentrl`.

One file a command. What a command needs beyond reading its arguments is imported when it runs, so
that `--help` and `inspect` never wait for torch or Ray.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from agentrl.cli import check, env, inspect, replay, sandbox, simulate, train

app = typer.Typer(
    name="agentrl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train.train)
app.command()(check.check)
app.command()(simulate.simulate)
app.command()(replay.replay)
app.add_typer(env.app, name="env")
app.add_typer(inspect.app, name="inspect")
app.add_typer(sandbox.app, name="sandbox")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"agentrl {version('agentrl-runtime')}")
        raise typer.Exit


@app.callback()
def agentrl(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Train language-model agents that use tools, and look at what they did.

    A first run:  agentrl train configs/quickstart.yaml
    """
