"""`agentrl sandbox`: the boxes that tools run in."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.errors import told_plainly
from sandboxes import BaseRecipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentrl.inspect.blocks import Block
    from sandboxes import BackendReport, FoundBox, Inventory

INCOMPLETE = 1
"""Exit code when something could not be seen or does not work."""

app = typer.Typer(no_args_is_help=True, help="Boxes that tools run in.")


@app.callback()
def sandbox() -> None:
    """Boxes that tools run in: what works here, what there is, what was left over."""


@app.command()
def doctor(
    runtime: Annotated[
        str | None, typer.Option(help="OCI runtime of the engine's boxes, such as runsc.")
    ] = None,
) -> None:
    """Make a box of every kind here, and say what each enforces and how fast it is.

    Exit code 1 when no kind that isolates can be used.
    """
    from rich.console import Console

    from agentrl.inspect.blocks import show
    from sandboxes import SandboxSpec
    from sandboxes import doctor as examine

    with told_plainly():
        reports = asyncio.run(examine(SandboxSpec(runtime=runtime)))
        show((block for report in reports for block in _report(report)), Console())
    if not any(report.problem is None and report.name != "subprocess" for report in reports):
        raise SystemExit(INCOMPLETE)


@app.command("list")
def list_() -> None:
    """Boxes on this machine and in its engine: whose they are and how old.

    A box is left over when its owner is certainly dead or its lease of a day is over; `gc` removes
    those. Exit code 1 when an engine is there but cannot be asked.
    """
    from sandboxes import take_inventory

    with told_plainly():
        inventory = asyncio.run(take_inventory())
        _show_boxes(inventory.boxes, nothing="There are no boxes.")
    _end_with(inventory)


@app.command()
def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
) -> None:
    """Remove boxes of owners that are dead, with all that belongs to them.

    Boxes of runs that live, here or on another host, stay. A run also does this by itself: its
    backend sweeps at its start, and with an engine every 30 seconds. Exit code 1 when an engine is
    there but cannot be asked.
    """
    from sandboxes import collect, take_inventory

    with told_plainly():
        inventory = asyncio.run(take_inventory() if dry_run else collect())
        left_over = [box for box in inventory.boxes if box.is_left_over]
        _show_boxes(left_over, nothing="Nothing is left over.")
        if left_over:
            print("would be removed" if dry_run else "removed", f"{len(left_over)}")
    _end_with(inventory)


@app.command()
def build(
    tag: Annotated[str, typer.Argument(help="Name of the image.")] = "agentrl-base",
    source: Annotated[
        BaseRecipe,
        typer.Option(
            "--from",
            help="dockerfile needs a registry; packages needs root on Debian; auto tries both.",
        ),
    ] = "auto",
) -> None:
    """Build the base image of Docker boxes, then make a box of it.

    Takes about a minute. Needs an engine, and a checkout of agentrl for its docker/ folder.
    """
    from sandboxes import build_base

    with told_plainly():
        create_ms = asyncio.run(build_base(tag, source))
    print(f"{tag} works: a box of it was made in {create_ms:.0f} ms")


def _show_boxes(boxes: Iterable[FoundBox], *, nothing: str) -> None:
    from rich.console import Console

    from agentrl.inspect.blocks import Note, Sheet, show, visible

    rows = tuple(
        (
            visible(box.name),
            box.backend,
            visible(box.run_id) or "-",
            str(box.owner_pid or "-"),
            box.owner.value,
            _age(box.age_s),
            "yes" if box.is_left_over else "no",
        )
        for box in boxes
    )
    columns = ("box", "backend", "run", "owner pid", "owner", "age", "left over")
    show([Sheet(columns, rows) if rows else Note(nothing)], Console())


def _age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _end_with(inventory: Inventory) -> None:
    if inventory.engine_problem:
        print(f"boxes of an engine were not seen: {inventory.engine_problem}", file=sys.stderr)
        raise SystemExit(INCOMPLETE)


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
