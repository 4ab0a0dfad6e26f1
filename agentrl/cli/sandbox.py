"""`agentrl sandbox`: the boxes that tools run in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from agentrl.cli.errors import told_plainly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl.inspect.blocks import Block
    from sandboxes import BackendReport

app = typer.Typer(no_args_is_help=True, help="Boxes that tools run in.")


@app.callback()
def sandbox() -> None:
    """Boxes that tools run in."""


@app.command()
def doctor() -> None:
    """Make a box of every kind here, and say what each enforces and how fast it is.

    Exit code 1 when no kind that isolates can be used.
    """
    from rich.console import Console

    from agentrl.inspect.blocks import show
    from sandboxes import doctor as examine

    with told_plainly():
        reports = asyncio.run(examine())
        show((block for report in reports for block in _report(report)), Console())
    if not any(report.problem is None and report.name != "subprocess" for report in reports):
        raise SystemExit(1)


def _report(report: BackendReport) -> Iterator[Block]:
    from agentrl.inspect.blocks import Facts, Heading, Note

    yield Heading(f"{report.name}: {'works' if report.problem is None else 'cannot be used'}")
    if report.problem is not None:
        yield Note(report.problem)
    if report.create_ms is not None and report.call_ms is not None:
        yield Facts(
            (("make a box", f"{report.create_ms:.0f} ms"), ("a call", f"{report.call_ms:.2f} ms"))
        )
    held = report.capabilities
    if held is not None:
        limits = ("network", "memory", "pids", "disk", "cpus", "kernel_isolation", "allow_list")
        words = {True: "enforced", False: "NOT enforced"}
        yield Facts(tuple((name.replace("_", " "), words[getattr(held, name)]) for name in limits))
        for note in held.notes:
            yield Note(note)
