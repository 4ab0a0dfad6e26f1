"""Trails: what a task is made of, and that its demonstrator plays it as told."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from agentrl import Task, Turn
from envs.trail import HOP_WEIGHTS, Trail


def take(split: str, number: int, env_class: type[Trail] = Trail) -> list[Task]:
    return list(islice(env_class.tasks(split), number))


def read_on(task: Task) -> str:
    """Follow the files as a reader would."""
    name = task.prompt
    while name in task.data["files"]:
        name = task.data["files"][name]
    return name


def test_tasks_are_reproducible_and_splits_share_no_trail() -> None:
    assert take("train", 200) == take("train", 200)
    assert take("train", 3)[2].id == "train-000002"
    train, evaluation = take("train", 3000), list(Trail.tasks("eval"))
    assert not {task.prompt for task in train} & {task.prompt for task in evaluation}
    assert len({task.id for task in evaluation}) == len(evaluation)


def test_a_trail_leads_from_the_prompt_to_the_answer() -> None:
    for task in take("train", 300):
        assert read_on(task) == task.data["answer"]
        assert 10 <= int(task.data["answer"]) <= 999
        assert set(task.data["files"]) == set(task.data["trail"])
        assert all(len(name) == 3 for name in task.data["trail"])


def test_lengths_are_drawn_as_weighted_up_to_the_longest() -> None:
    drawn = Counter(len(task.data["trail"]) for task in take("train", 6000))
    for hops, weight in enumerate(HOP_WEIGHTS, start=1):
        assert drawn[hops] / 6000 == pytest.approx(weight, abs=0.02)
    short = Counter(
        len(t.data["trail"]) for t in take("train", 500, Trail.configure({"max_hops": 2}))
    )
    assert set(short) == {1, 2}


def test_decoys_lie_beside_the_trail_and_never_lead_onto_it() -> None:
    for task in take("train", 100, Trail.configure({"decoys": 3})):
        files, trail = task.data["files"], set(task.data["trail"])
        assert len(files) == len(trail) + 3
        assert not {content for name, content in files.items() if name not in trail} & trail
        assert Trail.sandbox_for(task).files == files


def test_sums_end_in_a_sum() -> None:
    for task in take("train", 50, Trail.configure({"sums": 1})):
        a, b = task.data["end"].split("+")
        assert int(a) + int(b) == int(task.data["answer"])
        assert [call.name for turn in Trail(task).demo() for call in turn.calls][-1] == "calc"


def test_the_patient_demonstrator_reads_every_file_and_answers() -> None:
    for task in take("train", 50):
        *reads, answer = Trail(task).demo()
        assert [turn.calls[0].arguments["cmd"] for turn in reads] == [
            f"cat {name}" for name in task.data["trail"]
        ]
        assert answer == Turn(task.data["answer"])


def test_the_impatient_demonstrator_gives_up_at_names_alone() -> None:
    impatient = Trail.configure({"give_up": 0.6})
    ends = Counter()
    for task in take("train", 2000, impatient):
        *reads, answer = impatient(task).demo()
        is_answer = answer.text == task.data["answer"]
        assert is_answer == (len(reads) == len(task.data["trail"]))
        assert answer.text == reads[-1].results[0].text
        if len(task.data["trail"]) == 2:
            ends[is_answer] += 1
    assert ends[False] / ends.total() == pytest.approx(0.6, abs=0.08)


async def test_turns_are_what_a_trail_needs_and_a_few_to_spare() -> None:
    for task in take("train", 20, Trail.configure({"sums": 0.5})):
        env = Trail.configure({"spare_turns": 2})(task)
        assert await env.start() == task.data["trail"][0]
        assert env.max_turns == len(list(env.demo())) + 2
        assert env.ledger.metrics == {"hops": len(task.data["trail"])}


@pytest.mark.parametrize(
    ("turns", "reward"),
    [([], 0), (["{answer}"], 1), ([" {answer}\n"], 1), (["{answer}0"], 0), (["{answer}", ""], 0)],
)
async def test_only_the_final_text_counts(turns: list[str], reward: float) -> None:
    (task,) = take("eval", 1)
    env = Trail(task)
    env.turns = [Turn(text.format(answer=task.data["answer"])) for text in turns]
    assert await env.reached() == reward
