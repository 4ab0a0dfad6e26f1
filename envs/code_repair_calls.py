"""Calls of a repository's functions, and what code answers to them.

The answers tell a broken module from a correct one, when a task is drawn and when it is graded.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from random import Random
from string import ascii_lowercase
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from envs import code_repair_library as library
from envs.code_repair_sources import Sources

CALLS = 10
"""Of each function."""


class Call(NamedTuple):
    module: str
    function: str
    arguments: list[Any]

    def __str__(self) -> str:
        return f"{self.module}.{self.function}({', '.join(map(repr, self.arguments))})"


def draw_calls(sources: Sources, rng: Random) -> list[Call]:
    return [
        Call(name, sources.spelled(function.__name__), ARGUMENTS[function](rng))
        for name in sources.texts
        for function in library.MODULES[name]
        for _ in range(CALLS)
    ]


def answers(module_of: Callable[[str], Any], calls: Sequence[Sequence[Any]]) -> list[str]:
    """What each call returns and leaves of its arguments, or what it raises, in JSON.

    It also runs in boxes, as text, so it knows nothing but its own imports.
    """
    import json

    said = []
    for module, function, arguments in calls:
        given = json.loads(json.dumps(arguments))
        try:
            answer = {"returns": getattr(module_of(module), function)(*given), "given": given}
        except Exception as error:  # noqa: BLE001 - whatever the code does is its answer
            answer = {"raises": type(error).__name__}
        said.append(json.dumps(answer, sort_keys=True))
    return said


def loaded(texts: Mapping[str, str]) -> Callable[[str], ModuleType]:
    """Modules of our own, run from their text when they are asked for; this process's stay as
    they are.

    Never for what a policy wrote: it runs here, not in a box.
    """
    modules: dict[str, ModuleType] = {}

    def import_(name: str, *rest: Any) -> ModuleType:
        return find(name) if name in texts else __import__(name, *rest)

    def find(name: str) -> ModuleType:
        if name not in modules:
            module = modules[name] = ModuleType(name)
            vars(module)["__builtins__"] = {**vars(builtins), "__import__": import_}
            exec(_compiled(texts[name]), vars(module))
        return modules[name]

    return find


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    """Correct modules are run again for each way to break another."""
    return compile(text, "<module>", "exec", dont_inherit=True)


# -------------------------------------------------------------- arguments, small: edges are met often


def _numbers(rng: Random, least: int = 0, most: int = 7) -> list[int]:
    return [rng.randint(0, 12) for _ in range(rng.randint(least, most))]


def _sorted(rng: Random) -> list[int]:
    return sorted(_numbers(rng))


def _text(rng: Random, most: int = 9, letters: str = "abc") -> str:
    return "".join(rng.choices(letters, k=rng.randint(0, most)))


def _mirrored(rng: Random) -> str:
    """A palindrome, every other time."""
    text = _text(rng, 4, "ab")
    return text + text[:: rng.choice([1, -1])]


def _words(rng: Random) -> list[str]:
    return [_text(rng, 8, ascii_lowercase) + "x" for _ in range(rng.randint(0, 9))]


def _span(rng: Random) -> list[int]:
    start = rng.randint(0, 14)
    return [start, start + rng.randint(1, 5)]


def _spans(rng: Random) -> list[list[int]]:
    return [_span(rng) for _ in range(rng.randint(0, 5))]


def _accounts(rng: Random) -> dict[str, int]:
    return {name: rng.randint(-3, 12) for name in ("ann", "bob", "cid")}


def _grid(rng: Random) -> list[list[int]]:
    width = rng.randint(2, 4)
    return [rng.choices([0, 1, 1], k=width) for _ in range(rng.randint(2, 4))]


def _tree(rng: Random, levels: int = 3) -> Any:
    if levels == 0 or rng.random() < 0.3:
        return rng.randint(0, 9)
    return [_tree(rng, levels - 1) for _ in range(rng.randint(0, 3))]


def _maybe(rng: Random, *values: Any) -> list[Any]:
    """None, some or all of the optional arguments."""
    return list(values[: rng.randint(0, len(values))])


ARGUMENTS: Mapping[Callable[..., Any], Callable[[Random], list[Any]]] = {
    library.page_count: lambda r: [r.randint(0, 45), *_maybe(r, r.randint(1, 6))],
    library.page_bounds: lambda r: [r.randint(1, 4), r.randint(4, 45), *_maybe(r, r.randint(1, 6))],
    library.page_items: lambda r: [
        list(range(r.randint(0, 30))),
        *_maybe(r, r.randint(1, 3), r.randint(1, 6)),
    ],
    library.page_label: lambda r: [r.randint(1, 4), r.randint(1, 45), *_maybe(r, r.randint(1, 6))],
    library.overlaps: lambda r: [_span(r), _span(r)],
    library.merge_spans: lambda r: [_spans(r)],
    library.covered: lambda r: [_spans(r)],
    library.is_free: lambda r: [_spans(r), *_span(r)],
    library.free_spans: lambda r: [_spans(r), *_maybe(r, r.randint(0, 8), r.randint(9, 18))],
    library.book: lambda r: [_spans(r), *_span(r)],
    library.shorten: lambda r: [_text(r, 14), *_maybe(r, r.randint(2, 9))],
    library.wrap_words: lambda r: [_words(r), *_maybe(r, r.randint(6, 20))],
    library.is_palindrome: lambda r: [_mirrored(r)],
    library.run_lengths: lambda r: [_text(r, 9, "ab")],
    library.digit_sum: lambda r: [r.randint(0, 10 ** r.randint(1, 5))],
    library.to_base: lambda r: [r.randint(0, 120), *_maybe(r, r.randint(2, 9))],
    library.common_divisor: lambda r: [r.randint(1, 12) * (n := r.randint(1, 9)), 4 * n],
    library.power: lambda r: [r.randint(-3, 5), r.randint(0, 9)],
    library.running_balances: lambda r: [_numbers(r), *_maybe(r, r.randint(0, 9))],
    library.fee: lambda r: [r.randint(0, 400), *_maybe(r, r.randint(1, 9), r.randint(0, 9))],
    library.transfer: lambda r: [
        _accounts(r),
        *r.sample(["ann", "bob", "cid"], 2),
        r.randint(1, 9),
    ],
    library.overdrawn: lambda r: [_accounts(r), *_maybe(r, r.randint(-2, 9))],
    library.top_scores: lambda r: [_numbers(r), *_maybe(r, r.randint(1, 5))],
    library.rank_of: lambda r: [r.randint(0, 12), _numbers(r)],
    library.middle: lambda r: [_numbers(r, 1)],
    library.trimmed: lambda r: [_numbers(r, 4, 9), *_maybe(r, r.randint(0, 2))],
    library.medal: lambda r: [r.randint(0, 12), _numbers(r), *_maybe(r, r.randint(1, 4))],
    library.inside: lambda r: [_grid(r), r.randint(-1, 4), r.randint(-1, 4)],
    library.neighbours: lambda r: [_grid(r), r.randint(0, 3), r.randint(0, 3)],
    library.turned: lambda r: [_grid(r)],
    library.with_rows_swapped: lambda r: [_grid(r), *r.sample([0, 1], 2)],
    library.longest_way: lambda r: [_grid(r), r.randint(0, 2), r.randint(0, 2)],
    library.flatten: lambda r: [_tree(r)],
    library.depth: lambda r: [_tree(r)],
    library.insert_position: lambda r: [values := _sorted(r), r.randint(0, 13), 0, len(values)],
    library.inserted: lambda r: [_sorted(r), r.randint(0, 13)],
    library.count_between: lambda r: [_sorted(r), low := r.randint(0, 9), low + r.randint(0, 4)],
    library.statement: lambda r: [
        _numbers(r, 1, 12),
        *_maybe(r, 5, r.randint(1, 2), r.randint(2, 5)),
    ],
    library.headline: lambda r: [_words(r), *_maybe(r, r.randint(4, 20))],
}
