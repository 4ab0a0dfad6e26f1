"""Who answers `self.roles` in a runner: a judge of the fleet, a server at a URL, or nobody."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from itertools import islice

from agentrl.chat.make import make_chat
from agentrl.config.judge import GenRMJudge
from agentrl.config.run import RunConfig
from agentrl.judging import JUDGE
from agentrl.models.backend import load_backend
from agentrl.registry import EnvRef
from agentrl.rollout.dispatch import Dispatcher
from agentrl.rollout.judge import JudgeModel, JudgeRole
from agentrl.rollout.judge_expert import judge_rows
from agentrl.rollout.judge_fleet import FleetJudge
from agentrl.rollout.judge_url import UrlJudgeModel

NUM_QUESTIONS = 16
"""Of the warm-up, that are looked at before the run."""


def check_judge(config: RunConfig) -> str:
    """Says in a line who judges. Raises ValueError when that cannot work."""
    judge = config.judge
    if judge is None:
        return "nobody"
    if not isinstance(judge, GenRMJudge):
        UrlJudgeModel(judge)
        return f"{judge.model} at {judge.url}"
    chat = make_chat(judge.chat, load_backend(judge.model), ())
    number = config.runtime.genrm_workers
    judges = f"{number} worker(s)" if number else "whoever can be spared"
    workers = f"{judges} of this run, {judge.model.from_}"
    if judge.warmup.steps == 0:
        return workers
    options = {**config.env.options, **judge.warmup.env_options}
    rows = judge_rows(
        EnvRef(name=config.env.name, options=options).load(),
        chat,
        brief=judge.brief,
        context_tokens=judge.context_tokens,
        seed=config.seed,
    )
    lengths = [len(row.ids) for row in islice(rows, NUM_QUESTIONS)]
    return (
        f"{workers}, {judge.warmup.steps} steps of warm-up on questions of {min(lengths)} to "
        f"{max(lengths)} tokens"
    )


async def open_roles(
    config: RunConfig, dispatcher: Dispatcher, closing: AsyncExitStack
) -> Mapping[str, JudgeRole]:
    """What has to be closed again is put on `closing`. Raises ValueError without the URL's key."""
    judge = config.judge
    if judge is None:
        return {}
    model: JudgeModel
    if isinstance(judge, GenRMJudge):
        is_brief = judge.brief
        model = FleetJudge(
            dispatcher=dispatcher,
            chat=make_chat(judge.chat, load_backend(judge.model), ()),
            max_tokens=judge.max_tokens,
            context_tokens=judge.context_tokens,
            temperature=judge.temperature,
        )
    else:
        is_brief = False
        model = await closing.enter_async_context(UrlJudgeModel(judge))
    return {
        JUDGE: JudgeRole(
            name=JUDGE,
            model=model,
            tries=judge.tries,
            timeout_s=judge.timeout_s,
            brief=is_brief,
            clock=time.monotonic,
        )
    }
