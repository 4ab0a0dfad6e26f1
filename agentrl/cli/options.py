"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A run file, such as configs/quickstart.yaml.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Override a key; can be given many times."
    ),
]
