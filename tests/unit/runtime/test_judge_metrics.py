"""What a step says of its judge."""

from sample_trajectories import make_trajectory

from agentrl.runtime.reports import judge_metrics
from agentrl.types import Judgement


def judgement(answers: tuple[str, ...], seconds: float, error: str | None = None) -> Judgement:
    return Judgement(
        judge="judge",
        kind="rubric",
        prompt="x",
        answers=answers,
        error=error,
        num_tokens=10 * len(answers),
        seconds=seconds,
    )


def test_questions_tries_tokens_and_waits_are_counted() -> None:
    asked = make_trajectory(judgements=(judgement(("a", "b"), 1.0), judgement(("a",), 3.0)))
    lost = make_trajectory(sibling=1, judgements=(judgement((), 5.0, error="gone"),))
    assert judge_metrics([asked, lost, make_trajectory(sibling=2)]) == {
        "judge/questions": 3,
        "judge/without_verdict": 1,
        "judge/tries_mean": 1.0,
        "judge/tokens": 30,
        "judge/seconds_mean": 3.0,
        "judge/seconds_max": 5.0,
    }


def test_a_run_without_a_judge_says_nothing_of_one() -> None:
    assert judge_metrics([make_trajectory()]) == {}
