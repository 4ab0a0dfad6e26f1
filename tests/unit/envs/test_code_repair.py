"""Repositories to repair: what is drawn, how it is broken, and that grading sees every bug."""

from __future__ import annotations

import ast
import inspect
import json
from collections import Counter
from itertools import islice
from random import Random
from types import SimpleNamespace

import pytest

from agentrl import Task
from envs import code_repair_library as library
from envs.code_repair import EVAL_TASKS, CodeRepair
from envs.code_repair_bugs import BugKind, broken_versions
from envs.code_repair_calls import ARGUMENTS, answers, draw_calls, loaded
from envs.code_repair_library import MODULES
from envs.code_repair_repository import MIN_TELLING, Repository, draw_repository
from envs.code_repair_sources import SYNONYMS, draw_sources

FUNCTIONS = [function for functions in MODULES.values() for function in functions]


def take(split: str, number: int) -> list[Repository]:
    return [CodeRepair.repository(task) for task in islice(CodeRepair.tasks(split), number)]


def of_kind(kind: BugKind, number: int = 6) -> list[Repository]:
    env_class = CodeRepair.configure({"bugs": [kind]})
    return [env_class.repository(task) for task in islice(env_class.tasks("train"), number)]


def broken_texts(repository: Repository) -> dict[str, str]:
    return {**repository.sources.texts, repository.broken: repository.broken_text}


# --------------------------------------------------------------------------------------- drawing


def test_a_task_is_the_same_repository_wherever_it_is_drawn() -> None:
    first = take("train", 20)
    draw_repository.cache_clear()
    assert take("train", 20) == first
    assert len({tuple(repository.files.items()) for repository in first}) == 20
    assert len(list(CodeRepair.tasks("eval"))) == EVAL_TASKS


@pytest.mark.slow
def test_no_broken_module_is_in_both_splits() -> None:
    train, evaluation = take("train", 120), take("eval", 60)
    assert not {r.broken_text for r in train} & {r.broken_text for r in evaluation}
    for drawn in (train, evaluation):
        assert {r.kind for r in drawn} == set(BugKind)
        assert len({r.broken for r in drawn}) > 8


def test_sizes_differ_and_have_a_limit() -> None:
    sizes = Counter(len(repository.sources.texts) for repository in take("train", 60))
    assert len(sizes) >= 4
    small = CodeRepair.configure({"modules": 1})
    for task in islice(small.tasks("train"), 30):
        texts = small.repository(task).sources.texts
        assert len(texts) == 1 or "import" in list(texts.values())[-1]


def test_modules_import_only_those_before_them() -> None:
    sources = draw_sources(Random(0), len(MODULES))
    assert list(sources.texts) == list(MODULES)
    seen: set[str] = set()
    for name, text in sources.texts.items():
        imported = {n.module for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)}
        assert imported <= seen
        seen.add(name)


def test_new_names_take_no_name_that_is_in_use() -> None:
    words = {
        node.id if isinstance(node, ast.Name) else node.arg
        for node in ast.walk(ast.parse(inspect.getsource(library)))
        if isinstance(node, ast.Name | ast.arg)
    }
    invented = [name for choices in SYNONYMS.values() for name in choices[1:]]
    assert len(invented) == len(set(invented))
    assert not set(invented) & (words | set(MODULES) | {f.__name__ for f in FUNCTIONS})
    assert set(SYNONYMS) <= words | {f.__name__ for f in FUNCTIONS}


def test_the_readme_tells_each_function_with_its_true_defaults() -> None:
    repository = of_kind(BugKind.WRONG_DEFAULT, 1)[0]
    for text in repository.sources.texts.values():
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                assert f"`{node.name}({ast.unparse(node.args)})`" in repository.files["README.md"]


# --------------------------------------------------------------------------------------- library


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_library_functions_keep_the_rules_of_the_library(function: object) -> None:
    assert callable(function)
    rng = Random(1)
    tree = ast.parse(inspect.getsource(function))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.While)]
    for _ in range(100):
        arguments = ARGUMENTS[function](rng)
        before = json.dumps(arguments)
        first, second = function(*arguments), function(*arguments)
        assert json.dumps(first) == json.dumps(second)
        assert json.dumps(arguments) == before
        assert json.loads(json.dumps([first])) == [first]


def test_spelled_anew_the_library_answers_as_before() -> None:
    sources = draw_sources(Random(3), len(MODULES))
    without_defaults = {"spans", "grid", "trees", "lookup"}
    calls = [c for c in draw_calls(sources, Random(4)) if c.module in without_defaults]
    plain = {sources.spelled(function.__name__): function for function in FUNCTIONS}
    assert answers(loaded(sources.texts), calls) == answers(
        lambda _: SimpleNamespace(**plain), calls
    )


# ------------------------------------------------------------------------------------------ bugs


@pytest.mark.parametrize(
    ("kind", "correct", "broken"),
    [
        (BugKind.OFF_BY_ONE, "for i in range(n): pass", "for i in range(n - 1): pass"),
        (BugKind.OFF_BY_ONE, "x = (n + 1) * 2", "x = (n) * 2"),
        (BugKind.OFF_BY_ONE, "x = y[: n]", "x = y[: n - 1]"),
        (BugKind.WRONG_OPERATOR, "x = (a) * (b)", "x = (a) + (b)"),
        (BugKind.WRONG_OPERATOR, "x = a and b", "x = a or b"),
        (BugKind.WRONG_OPERATOR, "x = min(a, b)", "x = max(a, b)"),
        (BugKind.BOUNDARY, "x = a <= b", "x = a < b"),
        (BugKind.BOUNDARY, "x = a > b", "x = a >= b"),
        (BugKind.NEGATED, "x = a == b", "x = a != b"),
        (BugKind.NEGATED, "x = a not in b", "x = a in b"),
        (BugKind.NEGATED, "x = not f(a)", "x = f(a)"),
        (BugKind.NEGATED, "if f(a): pass", "if not f(a): pass"),
        (BugKind.SWAPPED_ARGUMENTS, "x = f(a + 1, g(b), c)", "x = f(g(b), a + 1, c)"),
        (
            BugKind.MISSING_BASE_CASE,
            "def f(n):\n    if n == 0:\n        return 1\n    return n * f(n - 1)\n",
            "def f(n):\n    return n * f(n - 1)\n",
        ),
        (BugKind.WRONG_DEFAULT, "def f(a, b=4): pass", "def f(a, b=5): pass"),
        (BugKind.MUTATED_ARGUMENT, "x = list(a)", "x = a"),
    ],
)
def test_each_kind_is_one_edit(kind: BugKind, correct: str, broken: str) -> None:
    assert broken_versions(correct, kind) == [broken]


def test_code_without_room_for_a_kind_is_not_broken_that_way() -> None:
    assert not any(broken_versions("x = 1\n", kind) for kind in BugKind)
    guard = "def f(n):\n    if n == 0:\n        return 1\n    return n\n"
    assert not broken_versions(guard, BugKind.MISSING_BASE_CASE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BugKind)
def test_a_bug_is_seen_whatever_is_asked_and_its_repair_is_right(kind: BugKind) -> None:
    for repository in of_kind(kind):
        assert repository.kind is kind
        assert len(repository.telling) >= MIN_TELLING
        path, old, new = repository.repair
        assert path == f"{repository.broken}.py"
        assert repository.broken_text.count(old) == 1
        repaired = repository.broken_text.replace(old, new)
        assert repaired == repository.sources.texts[repository.broken]
        for seed in range(3):
            calls = repository.hidden_calls(Random(seed))
            right = repository.right_answers(calls)
            assert not any(answer.startswith('{"raises"') for answer in right)
            assert answers(loaded(broken_texts(repository)), calls) != right


@pytest.mark.slow
def test_new_calls_alone_see_nearly_every_bug_so_that_reported_ones_cannot_be_learned() -> None:
    seen = 0
    for repository in take("train", 100):
        calls = draw_calls(repository.sources, Random("new"))
        wrong = answers(loaded(broken_texts(repository)), calls)
        seen += wrong != repository.right_answers(calls)
    assert seen >= 95


def test_reports_are_true_and_do_not_say_where_the_bug_is() -> None:
    far = 0
    for repository in take("train", 60):
        reported = repository.telling[0]
        (wrong,) = answers(loaded(broken_texts(repository)), [reported.call])
        (right,) = repository.right_answers([reported.call])
        assert json.loads(wrong) == reported.wrong != reported.right == json.loads(right)
        assert str(reported.call) in reported.report
        far += reported.call.module != repository.broken
    assert far


def test_tests_in_the_repository_hold_for_the_correct_code() -> None:
    for repository in take("train", 20):
        find = loaded(repository.sources.texts)
        for name, text in repository.tests.items():
            scope: dict[str, object] = {other: find(other) for other in repository.sources.texts}
            for line in text.splitlines():
                if "assertEqual" in line:
                    left, right = eval(line.strip().removeprefix("self.assertEqual"), scope)
                    assert left == right, name


# ------------------------------------------------------------------------------------ environment


@pytest.mark.parametrize("options", [{"bugs": ["typo"]}, {"bugs": []}, {"modules": 0}])
def test_options_that_mean_nothing_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"option {next(iter(options))}"):
        CodeRepair.configure(options)


async def test_the_box_holds_the_broken_code_and_nothing_of_the_correct_one() -> None:
    task = Task("train-000000")
    repository = CodeRepair.repository(task)
    files = CodeRepair.sandbox_for(task).files
    assert files[f"{repository.broken}.py"] == repository.broken_text
    assert repository.sources.texts[repository.broken] not in files.values()
    env = CodeRepair(task)
    assert await env.start() == f"{repository.telling[0].report} Please repair it."
    assert env.ledger.metrics == {"modules": len(repository.sources.texts)}
