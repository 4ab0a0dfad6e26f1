"""Correct modules for a repository of `code_repair`: functions of the library, spelled anew.

Names, defaults and the order of functions differ from repository to repository, so the same
function is hardly ever the same text.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

from envs.code_repair_library import MODULES

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "total": ("total", "entries", "things"),
    "size": ("size", "per_page", "chunk"),
    "first": ("first", "begin", "offset"),
    "start": ("start", "since", "left"),
    "end": ("end", "until", "right_end"),
    "merged": ("merged", "joined", "result"),
    "busy": ("busy", "taken", "booked_spans"),
    "text": ("text", "string", "phrase"),
    "number": ("number", "n", "value"),
    "one": ("one", "a", "x"),
    "other": ("other", "b", "y"),
    "amount": ("amount", "sum_of_money", "units"),
    "accounts": ("accounts", "book_of_accounts", "customers"),
    "scores": ("scores", "points", "results"),
    "ordered": ("ordered", "in_order", "ranked"),
    "rows": ("rows", "cells", "board"),
    "tree": ("tree", "nested", "node"),
    "values": ("values", "items_in_order", "known"),
    "wanted": ("wanted", "key", "needle"),
    "page_count": ("page_count", "num_pages", "pages_for"),
    "merge_spans": ("merge_spans", "union", "collapse"),
    "shorten": ("shorten", "truncate", "clip"),
    "transfer": ("transfer", "move_money", "pay"),
    "insert_position": ("insert_position", "bisect", "find_place"),
}
"""Names that every repository chooses anew, so that no two spell the same code alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    texts: Mapping[str, str]
    """Of modules by name; a module imports only those before it."""
    spelling: Mapping[str, str]
    """The names in place of the library's."""

    def spelled(self, name: str) -> str:
        return self.spelling.get(name, name)

    def users_of(self, module: str) -> set[str]:
        """The module and all that import it, directly or not."""
        users = {module}
        for name in self.texts:  # each after those that it imports
            if users & _imports(name).keys():
                users.add(name)
        return users


def draw_sources(rng: Random, num_modules: int) -> Sources:
    """So many modules, and those that they import."""
    spelling = {name: rng.choice(choices) for name, choices in SYNONYMS.items()}
    wanted = set(rng.sample(list(MODULES), num_modules))
    texts: dict[str, str] = {}
    for name in reversed(list(MODULES)):
        if name in wanted:
            imports = _imports(name)
            wanted.update(imports)
            texts[name] = _with_other_defaults(_spelled(_module(name, imports, rng), spelling), rng)
    return Sources(texts=dict(reversed(texts.items())), spelling=spelling)


def readme(texts: Mapping[str, str]) -> Iterator[str]:
    """Every function with its defaults and what is said of it."""
    yield "Small functions, each module with its tests. `python3 -m unittest` runs them.\n"
    for name, text in texts.items():
        yield f"\n## {name}\n"
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                doc = " ".join(str(ast.get_docstring(node)).split())
                yield f"- `{node.name}({ast.unparse(node.args)})`: {doc}\n"


@cache
def _functions(module: str) -> tuple[str, ...]:
    return tuple(inspect.getsource(function).strip() for function in MODULES[module])


@cache
def _imports(module: str) -> Mapping[str, list[str]]:
    """What a module uses of others."""
    words = set(re.findall(r"\w+", "".join(_functions(module))))
    used = {
        name: [function.__name__ for function in functions if function.__name__ in words]
        for name, functions in MODULES.items()
        if name != module
    }
    return {name: names for name, names in used.items() if names}


def _module(name: str, imports: Mapping[str, list[str]], rng: Random) -> str:
    lines = [f"from {module} import {', '.join(names)}" for module, names in imports.items()]
    functions = rng.sample(_functions(name), len(_functions(name)))
    return "\n\n\n".join(["\n".join(lines), *functions]).lstrip() + "\n"


def _spelled(text: str, spelling: Mapping[str, str]) -> str:
    """Other names in code, and in docstrings where they stand between backquotes."""

    def in_code(part: str) -> str:
        return re.sub(r"\w+", lambda word: spelling.get(word[0], word[0]), part)

    def in_prose(part: str) -> str:
        return re.sub(r"`\w+`", lambda quoted: in_code(quoted[0]), part)

    parts = text.split('"""')
    return '"""'.join(
        in_prose(part) if index % 2 else in_code(part) for index, part in enumerate(parts)
    )


def _with_other_defaults(text: str, rng: Random) -> str:
    """Equal defaults stay equal; 0 and 1 stand for themselves."""
    others = {str(number): str(rng.randint(number, 2 * number)) for number in range(2, 20)}
    return re.sub(r"(?<=: int = )\d+", lambda number: others.get(number[0], number[0]), text)
