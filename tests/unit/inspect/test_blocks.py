from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentrl.inspect.blocks import (
    Block,
    Facts,
    Heading,
    Note,
    Passage,
    Sheet,
    number,
    one_line,
    show,
    sparkline,
    visible,
)


def printed(blocks: list[Block], *, is_terminal: bool = False) -> str:
    out = io.StringIO()
    show(blocks, Console(file=out, force_terminal=is_terminal, width=80, color_system=None))
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b[?1049h\x00", r"\x1b[?1049h\x00"),
        ("a\rb\x07\x9b", r"a\x0db\x07\x9b"),
        ("abc\u202edef\u2066", r"abc\u202edef\u2066"),
        ("tab\tand\nnewline é 漢", "tab\tand\nnewline é 漢"),
    ],
)
def test_control_characters_are_seen_and_not_obeyed(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_markup_in_text_stays_text() -> None:
    blocks: list[Block] = [
        Passage("[bold]who[/bold]", "[red]x[/red] [link=http://a]b[/link]"),
        Sheet(("a",), (("[green]1[/green]",),)),
        Facts((("n", ":smile: [b]v[/b]"),)),
    ]
    for is_terminal in (True, False):
        out = printed(blocks, is_terminal=is_terminal)
        for text in ("[bold]who[/bold]", "[red]x[/red]", "[green]1[/green]", ":smile: [b]v[/b]"):
            assert text in out


def test_a_pipe_gets_aligned_lines() -> None:
    out = printed(
        [
            Heading("groups"),
            Sheet(("#", "task", "mean"), (("0", "漢字", "0.50"), ("10", "b", "-"))),
            Facts((("short", "1"), ("a longer name", "2"), ("empty", ""))),
            Note("done"),
        ]
    )
    assert out.splitlines() == [
        "",
        "groups",
        " #  task  mean",
        " 0  漢字  0.50",
        "10  b        -",
        "short          1",
        "a longer name  2",
        "done",
    ]


def test_a_pipe_never_breaks_lines() -> None:
    assert printed([Note("x" * 300)]) == "x" * 300 + "\n"


def test_one_line_cuts() -> None:
    assert one_line("a\nb\tc", 20) == "a\\nb\\tc"
    assert one_line("abcdef", 4) == "abc…"


def test_numbers() -> None:
    assert [number(value) for value in (None, 1.0, 0.5, -2, 1 / 3)] == [
        "-",
        "1",
        "0.500",
        "-2",
        "0.333",
    ]


def test_sparklines() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.5]) == "▁"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    long = sparkline(list(range(1000)), width=8)
    assert long == "▁▂▃▄▅▆▇█"
