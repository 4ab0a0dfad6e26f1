"""Who answers `self.roles` in a runner: a judge of the fleet, a server at a URL, or nobody."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack

from agentrl.chat.make import make_chat
from agentrl.config.judge import GenRMJudge
from agentrl.config.run import RunConfig
from agentrl.models.backend import load_backend
from agentrl.rollout.dispatch import Dispatcher
from agentrl.rollout.judge import JudgeModel, JudgeRole
from agentrl.rollout.judge_expert import JUDGE
from agentrl.rollout.judge_fleet import FleetJudge
from agentrl.rollout.judge_url import UrlJudgeModel


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
