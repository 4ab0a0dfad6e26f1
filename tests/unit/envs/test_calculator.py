"""Splits, tool and demonstration of the calculator."""

from __future__ import annotations

import pytest

from agentrl import ToolError, Turn
from agentrl.chat.plain import PlainFormat
from agentrl.models.tokenizer import byte_tokenizer
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.check import check_env
from envs.calculator import Calculator


def test_splits_are_disjoint_and_together_all_problems() -> None:
    small = Calculator.configure({"largest": 11})
    train, evaluation = ({task.id for task in small.tasks(split)} for split in ("train", "eval"))
    assert not train & evaluation
    assert len(train | evaluation) == 10**3
    assert len(evaluation) == 100


def test_one_operation_at_a_time() -> None:
    env = Calculator(next(Calculator.tasks("train")))
    assert (env.calc("12*7"), env.calc("84+30")) == ("84", "114")
    for bad in ("1+2+3", "1-2", "a+b", "", "1" * 10 + "+1"):
        with pytest.raises(ToolError):
            env.calc(bad)


async def test_the_environment_checks_out() -> None:
    chat = PlainFormat(byte_tokenizer().backend_tokenizer, Calculator.definition().schemas)
    report = await check_env(Calculator, chat, RolloutLimits())
    assert report.problems == ()
    assert (report.demo_reward, report.empty_reward) == (1.0, 0.0)


async def test_only_the_right_number_counts() -> None:
    env = Calculator(next(task for task in Calculator.tasks("train") if task.id == "2*3+5"))
    env.turns = [Turn("11")]
    assert await env.exact() == 1
    env.turns = [Turn("12")]
    assert await env.exact() == 0
