"""The environment's own rule in a judge's place, and what a judge made from scratch learns from it.

`agentrl env check`, `env demo`, `env play` and the policy's warm-up have no fleet to ask. There the
rule answers (`Env.expert_verdict`), through the same text and the same strict reading as a model.
Where the environment has no rule, nobody answers: what was to be judged is unscored and says so.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping

import numpy as np

from agentrl.chat.format import ChatFormat
from agentrl.env import Env, seed_of
from agentrl.judging import JUDGE, NoVerdict
from agentrl.rollout.demos import DemoRow
from agentrl.rollout.judge import Answer, Ask, JudgeRole
from agentrl.rollout.judge_text import messages_for, write_verdict
from agentrl.types import Turn

EXPERT = "expert_verdict()"


class ExpertJudge:
    """Implements `JudgeModel` by the environment's rule."""

    def __init__(self, env_class: type[Env]) -> None:
        self._env_class = env_class

    async def answer(self, ask: Ask) -> Answer:
        verdict = self._env_class.expert_verdict(ask.question)
        if verdict is None:
            raise NoVerdict(
                f"there is no judge here, and {self._env_class.__name__}.expert_verdict() has no "
                "rule for this question"
            )
        return Answer(text=write_verdict(ask.question, verdict), served_by=EXPERT)


def expert_roles(env_class: type[Env]) -> Mapping[str, JudgeRole]:
    """For rollouts without a fleet."""
    judge = JudgeRole(
        name=JUDGE,
        model=ExpertJudge(env_class),
        tries=1,
        timeout_s=60.0,
        brief=False,
        clock=time.monotonic,
    )
    return {JUDGE: judge}


def judge_rows(
    env_class: type[Env], chat: ChatFormat, *, brief: bool, context_tokens: int, seed: int
) -> Iterator[DemoRow]:
    """Endless rows for the supervised warm-up of a judge.

    Raises ValueError when the environment has nothing to teach, or what does not fit.
    """
    rng = random.Random(seed_of(seed, "judge"))
    number = -1
    for number, question in enumerate(env_class.judge_questions(rng)):
        verdict = env_class.expert_verdict(question)
        if verdict is None:
            raise ValueError(
                f"{env_class.__name__}.expert_verdict() has no rule for a question that its own "
                "judge_questions() gives; it must answer each of them"
            )
        start = chat.render_start(messages_for(question, brief=brief))
        said = chat.render_assistant(Turn(write_verdict(question, verdict)))
        if len(start) + len(said) > context_tokens:
            raise ValueError(
                f"judge.context_tokens {context_tokens} is too little: question {number} of "
                f"{env_class.__name__}.judge_questions() and its answer take "
                f"{len(start) + len(said)} tokens"
            )
        ids = np.array([*start, *said], np.int32)
        yield DemoRow(ids, np.arange(len(ids)) >= len(start))
    raise ValueError(
        f"{env_class.__name__}.judge_questions() ended after {number + 1} question(s); the warm-up "
        "of a judge (judge.warmup) needs an endless number"
    )
