"""What a terminal view is made of, and how it is printed.

A view is a list of blocks that hold plain text; only here is decided what they look like. On a
terminal that is tables and colour, in a pipe aligned lines that `grep` and `less` are good at.

Invariant: text of a model, a tool or a task reaches the terminal only through `visible`, so no
escape sequence in it is ever carried out, and nothing in it is taken for markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import assert_never

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, one pair a line; empty values are left out."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rows under column names; columns of numbers stand at the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """Somebody's words, whole."""

    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    text: str


NOTHING = "(nothing)"
"""What stands where somebody said the empty text."""

Block = Heading | Facts | Sheet | Passage | Note

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all but tab and newline
    "\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"  # what turns or hides other text
)
_SPARKS = "▁▂▃▄▅▆▇█"
_NUMBER = re.compile(r"[-+]?[\d.]+|-?")


def visible(text: str) -> str:
    """Text in which control characters are seen instead of obeyed."""
    return _CONTROL.sub(lambda match: _escape(match[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: str, width: int) -> str:
    """The beginning of a text, on one line."""
    line = visible(text).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= width else f"{line[: width - 1]}…"


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if value % 1 else f"{value:.0f}"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """A curve in one line; long ones are averaged down to `width` characters."""
    if not values:
        return ""
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((mean - low) * scale)] for mean in means)


def show(blocks: Iterable[Block], console: Console) -> None:
    for block in blocks:
        for part in _rich(block) if console.is_terminal else _plain(block):
            console.print(part, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def _rich(block: Block) -> list[Text | Table | Padding]:
    match block:
        case Heading(text):
            return [Text(f"\n{text}", style="bold")]
        case Facts():
            grid = Table.grid(padding=(0, 2))
            for name, value in _given(block):
                grid.add_row(Text(name, style="cyan"), Text(value))
            return [grid]
        case Sheet(columns, rows):
            table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
            for index, column in enumerate(columns):
                table.add_column(
                    Text(column), justify="right" if _is_numeric(rows, index) else "left"
                )
            for row in rows:
                table.add_row(*map(Text, row))
            return [table]
        case Passage(speaker, text):
            return [Text(speaker, style="bold cyan"), Padding(Text(text), (0, 0, 0, 2))]
        case Note(text):
            return [Text(text, style="dim")]
    assert_never(block)


def _plain(block: Block) -> list[Text]:
    match block:
        case Heading(text):
            lines = ["", text]
        case Facts():
            width = max((len(name) for name, _ in _given(block)), default=0)
            lines = [f"{name:<{width}}  {value}" for name, value in _given(block)]
        case Sheet(columns, rows):
            lines = _aligned((columns, *rows), [_is_numeric(rows, i) for i in range(len(columns))])
        case Passage(speaker, text):
            lines = [speaker, *(f"  {line}" for line in text.split("\n"))]
        case Note(text):
            lines = [text]
        case _:
            assert_never(block)
    return [Text(line) for line in lines]


def _given(facts: Facts) -> list[tuple[str, str]]:
    return [(name, value) for name, value in facts.pairs if value]


def _is_numeric(rows: Sequence[tuple[str, ...]], index: int) -> bool:
    return all(_NUMBER.fullmatch(row[index]) for row in rows)


def _aligned(rows: Sequence[tuple[str, ...]], numeric: Sequence[bool]) -> list[str]:
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            f"{' ' * (width - cell_len(cell))}{cell}"
            if is_number
            else f"{cell}{' ' * (width - cell_len(cell))}"
            for cell, width, is_number in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in rows
    ]
