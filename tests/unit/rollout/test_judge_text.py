"""The form of questions and answers, by example."""

from __future__ import annotations

import pytest

from agentrl.judging import Criterion, Verdict
from agentrl.rollout.judge_text import (
    Unreadable,
    compare_question,
    messages_for,
    read_verdict,
    rubric_question,
    score_question,
    write_verdict,
)
from agentrl.types import RewardPart

RUBRIC = rubric_question(
    "Of a shop assistant.",
    [Criterion("polite", "Was it polite?", weight=3.0), Criterion("right", top=4)],
    "A Thank you!",
)


def test_reasons_come_before_values_and_weights_make_the_mean() -> None:
    verdict = read_verdict(RUBRIC, "polite: it said thanks => 1\nright: half of it => 2\n")
    assert [part.value for part in verdict.parts] == [1.0, 0.5]
    assert float(verdict) == (3 * 1.0 + 1 * 0.5) / 4
    assert verdict.rationale == "polite: it said thanks; right: half of it"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("", "wanted 2 line"),
        ("polite: => 1", "got 1"),
        ("right: => 1\npolite: => 1", "wanted `polite: REASON => VALUE`"),
        ("polite: => 1\nright: => 5", "a number from 0 to 4, got '5'"),
        ("polite: => -1\nright: => 1", "got '-1'"),
        ("polite: => 1e0\nright: => 1", "got '1e0'"),
        ("polite: => ١\nright: => 1", "a number from 0 to 1"),
        ("polite: => 1 of 1\nright: => 1", "got '1 of 1'"),
        ("polite: => nan\nright: => 1", "got 'nan'"),
        ("polite: 1\nright: => 1", "wanted `polite: REASON => VALUE`"),
        ("Polite: => 1\nright: => 1", "wanted `polite"),
        ("polite: => 1\nright: => 1\nand more", "got 3"),
    ],
)
def test_what_is_not_exactly_the_form_is_not_guessed_at(answer: str, told: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read_verdict(RUBRIC, answer)
    assert told in str(caught.value)


def test_a_comparison_is_a_b_or_tie() -> None:
    question = compare_question("Which is better?", "one", "two")
    assert read_verdict(question, "better: shorter => A").value == 1.0
    assert read_verdict(question, "better: => B").value == 0.0
    assert read_verdict(question, "better: alike => tie").value == 0.5
    with pytest.raises(Unreadable, match="A, B or tie"):
        read_verdict(question, "better: => a")


def test_a_full_question_explains_the_form_and_a_brief_one_does_not() -> None:
    system, user = messages_for(RUBRIC, brief=False)
    assert "polite: REASON => VALUE   (VALUE is a number from 0 to 1)" in system.content
    assert "right: REASON => VALUE   (VALUE is a number from 0 to 4)" in system.content
    assert user.content == "Of a shop assistant.\npolite: Was it polite?\n<<<\nA Thank you!\n>>>"
    (brief,) = messages_for(RUBRIC, brief=True)
    assert brief.content == "Of a shop assistant.\npolite right\nA Thank you!"
    (pair,) = messages_for(compare_question("Which?", "x", "y"), brief=True)
    assert pair.content == "Which?\nA\n<<<\nx\n>>>\nB\n<<<\ny\n>>>"


def test_a_verdict_on_something_else_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="answers no question"):
        write_verdict(score_question("?", "x", 10), Verdict((RewardPart(name="b", value=1.0),)))


def test_rubrics_and_criteria_are_checked_where_they_are_made() -> None:
    with pytest.raises(ValueError, match="names of their own"):
        rubric_question("", [Criterion("a"), Criterion("a")], "x")
    with pytest.raises(ValueError, match="names of their own"):
        rubric_question("", [], "x")
    with pytest.raises(ValueError, match="one word"):
        Criterion("two words")
    with pytest.raises(ValueError, match="top >= 1"):
        Criterion("a", top=0)
