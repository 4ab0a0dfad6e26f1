"""A repository with one bug, drawn for a task of `code_repair`: files, report, repair, hidden calls.

All of it follows from the task's id. The correct and the broken code are run here to find out
which calls they answer differently: those prove the bug, and one of them is reported by the user.

Invariant: text of a broken module that occurs in a task for training occurs in none for
evaluation; its checksum decides.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, takewhile
from random import Random
from typing import Any, NamedTuple

from envs.code_repair_bugs import BugKind, broken_versions
from envs.code_repair_calls import Call, answers, draw_calls, loaded
from envs.code_repair_sources import Sources, draw_sources, readme

EVAL_SHARE = 10
"""One in so many broken modules is kept for evaluation."""
MIN_TELLING = 4
"""So many of the calls drawn must tell a broken module from a correct one."""
MAX_TELLING = 24
EXAMPLES = 6
"""In the tests of a module."""
_OBVIOUS = {"raises": "TypeError"}
"""Code that only ever gave this answer would never have been committed."""


class Telling(NamedTuple):
    """A call that gives a bug away, with its right and its wrong answer."""

    call: Call
    right: Mapping[str, Any]
    wrong: Mapping[str, Any]

    @property
    def report(self) -> str:
        """In a user's words."""
        if "raises" in self.wrong:
            what = f"fails with {self.wrong['raises']}"
        elif self.wrong["returns"] != self.right["returns"]:
            what = f"returns {self.wrong['returns']!r}"
        else:
            after = self.call._replace(arguments=self.wrong["given"])
            return (
                f"`{self.call}` changes what I pass to it: afterwards my arguments are those of "
                f"`{after}`. It should leave them as they are."
            )
        return f"`{self.call}` {what}. It should return {self.right['returns']!r}."


class Repair(NamedTuple):
    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    sources: Sources
    """As they should be."""
    readme: str
    kind: BugKind
    broken: str
    """Name of the module that has the bug."""
    broken_text: str
    telling: Sequence[Telling]
    """The first is the one that is reported."""
    tests: Mapping[str, str]
    """By module."""

    @property
    def files(self) -> dict[str, str]:
        """What the policy finds."""
        texts = {**self.sources.texts, self.broken: self.broken_text}
        return {
            "README.md": self.readme,
            **{f"{name}.py": text for name, text in texts.items()},
            **{f"test_{name}.py": text for name, text in self.tests.items()},
        }

    @property
    def source_files(self) -> list[str]:
        return [f"{name}.py" for name in self.sources.texts]

    @property
    def repair(self) -> Repair:
        """The smallest edit by whole lines that undoes the bug and fits one place only."""
        old = self.broken_text.splitlines(keepends=True)
        new = self.sources.texts[self.broken].splitlines(keepends=True)
        above = _num_common(old, new)
        below = _num_common(old[above:][::-1], new[above:][::-1])
        while True:
            text = "".join(old[above : len(old) - below])
            if self.broken_text.count(text) == 1:
                return Repair(f"{self.broken}.py", text, "".join(new[above : len(new) - below]))
            above, below = (above - 1, below) if above else (above, below - 1)

    def hidden_calls(self, rng: Random) -> list[Call]:
        """New calls of every function, and those that the bug is known to get wrong."""
        return [*draw_calls(self.sources, rng), *(telling.call for telling in self.telling)]

    def right_answers(self, calls: Sequence[Call]) -> list[str]:
        return answers(loaded(self.sources.texts), calls)


@lru_cache(maxsize=512)
def draw_repository(
    task_id: str, *, is_eval: bool, max_modules: int, kinds: Sequence[BugKind]
) -> Repository:
    """Takes some milliseconds."""
    rng = Random(task_id)
    kind = rng.choice(kinds)
    while True:
        sources = draw_sources(rng, rng.randint(1, max_modules))
        calls: list[Call] = []
        for name, text in _draw_bugs(sources, kind, rng):
            if _is_for_eval(text) != is_eval:
                continue
            if not calls:
                calls = draw_calls(sources, rng)
                right = answers(loaded(sources.texts), calls)
            telling = list(_telling(sources, calls, right, name, text))
            if len(telling) >= MIN_TELLING and any(one.wrong != _OBVIOUS for one in telling):
                return Repository(
                    sources=sources,
                    readme="".join(readme(sources.texts)),
                    kind=kind,
                    broken=name,
                    broken_text=text,
                    telling=_simple_one_first(telling, name, rng)[:MAX_TELLING],
                    tests=_draw_tests(sources, calls, right, rng),
                )


class _Bug(NamedTuple):
    module: str
    text: str
    """Of the broken module."""


def _draw_bugs(sources: Sources, kind: BugKind, rng: Random) -> Iterator[_Bug]:
    """All that a kind can break, in any order."""
    for name in rng.sample(list(sources.texts), len(sources.texts)):
        versions = broken_versions(sources.texts[name], kind)
        rng.shuffle(versions)
        yield from (_Bug(name, text) for text in versions)


def _is_for_eval(broken_text: str) -> bool:
    return zlib.crc32(broken_text.encode()) % EVAL_SHARE == 0


def _telling(
    sources: Sources, calls: Sequence[Call], right: Sequence[str], broken: str, text: str
) -> Iterator[Telling]:
    """Only calls of the broken module and of those that import it can be answered otherwise."""
    touched = sources.users_of(broken)
    asked = [
        (call, answer) for call, answer in zip(calls, right, strict=True) if call[0] in touched
    ]
    find = loaded({**sources.texts, broken: text})
    wrong = answers(find, [call for call, _ in asked])
    for (call, good), bad in zip(asked, wrong, strict=True):
        if good != bad:
            yield Telling(call, json.loads(good), json.loads(bad))


def _simple_one_first(telling: Sequence[Telling], broken: str, rng: Random) -> list[Telling]:
    """First the one that a user reports: the shortest call of one function, and where the bug
    shows in other modules, of one of those."""
    by_function = [list(group) for _, group in groupby(telling, lambda one: one.call[:2])]
    elsewhere = [group for group in by_function if group[0].call.module != broken]
    first = min(rng.choice(elsewhere or by_function), key=lambda one: len(str(one.call)))
    return [first, *(one for one in telling if one is not first)]


def _draw_tests(
    sources: Sources, calls: Sequence[Call], right: Sequence[str], rng: Random
) -> dict[str, str]:
    """A few examples for each module; they may or may not meet the bug."""
    tests = {}
    for name in sources.texts:
        answered = [pair for pair in zip(calls, right, strict=True) if pair[0].module == name]
        lines = sorted(
            f"        self.assertEqual({call}, {json.loads(answer)['returns']!r})\n"
            for call, answer in rng.sample(answered, EXAMPLES)
        )
        tests[name] = (
            f"import unittest\n\nimport {name}\n\n\n"
            f"class {name.title()}Test(unittest.TestCase):\n"
            f"    def test_examples(self):\n{''.join(lines)}"
        )
    return tests


def _num_common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many elements both begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
