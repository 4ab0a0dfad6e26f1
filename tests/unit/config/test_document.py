from __future__ import annotations

import pytest

from agentrl.config.document import parse


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("1e-6", 1e-6),
        ("1E+3", 1000.0),
        ("2.5", 2.5),
        (".5", 0.5),
        ("-3", -3),
        ("007", 7),
        ("0x10", 16),
        ("0o17", 15),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        (".inf", ".inf"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("'1e-6'", "1e-6"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("|\n  1\n", "1\n"),
    ],
)
def test_a_word_means_what_it_says(word: str, meaning: object) -> None:
    document = parse(f"key: {word}", "f.yaml")
    assert not document.problems
    assert document.value == {"key": meaning}
    assert type(document.value["key"]) is type(meaning)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: `a` stands here and in line 1; keep one"),
        ("a:\n  b: 1\n  b: 2\n", "f.yaml:3: `a.b` stands here and in line 2; keep one"),
        ("a: &x\n  - *x\n", "f.yaml:1: an alias that contains itself"),
        ("? [1, 2]\n: 3\n", "f.yaml:1: a key must be a word"),
        ("a: 1\nb: !!python/name:os.system x\n", "f.yaml:2: the tag"),
        ("a: 1\n  b: 2\n", "f.yaml:2: not YAML"),
        ("a: [1, 2\nb: 3\n", "f.yaml:2: not YAML"),
        ("a: \x00\n", "f.yaml: not YAML"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not YAML"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, problem: str) -> None:
    (found,) = parse(text, "f.yaml").problems
    assert str(found).startswith(problem)


def test_all_duplicates_are_found_and_the_first_counts() -> None:
    document = parse("a: 1\na: 2\nb: {c: 1, c: 2}\n", "f.yaml")
    assert len(document.problems) == 2
    assert document.value == {"a": 1, "b": {"c": 1}}


def test_aliases_stand_for_what_they_name() -> None:
    document = parse("a: &x {b: 1}\nc: *x\n", "f.yaml")
    assert document.value == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_place_is_the_nearest_one_that_was_given() -> None:
    places = parse("a:\n  b: 1\n  c: [2,\n    3]\n", "f.yaml").places
    assert places.of(("a", "b")) == "f.yaml:2"
    assert places.of(("a", "c", 1)) == "f.yaml:4"
    assert places.of(("a", "missing", "below")) == "f.yaml:1"
    assert places.of(("nowhere",)) == "f.yaml:1"
    assert places.of_first([("a", "missing"), ("a", "b")]) == "f.yaml:2"
