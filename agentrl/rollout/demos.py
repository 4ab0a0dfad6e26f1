"""Rows for supervised warm-up from an environment's own `demo()` turns.

A demonstration is played through the real environment, its tools and its box, unless its turns
carry the results their calls will have: then nothing needs to run, and thousands of rows take
seconds. `agentrl.rollout.check` proves that such results are the real ones.

Invariant: a row is what a rollout of the same turns would have recorded, token by token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl.chat.format import ChatFormat
from agentrl.env import Env, NoSandbox, tasks_of
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.conversation import open_env, reply_of
from agentrl.rollout.dispatch import SandboxSource
from agentrl.rollout.judge import JudgeRole
from agentrl.rollout.local import ScriptedRollouts
from agentrl.rollout.tokens import TokenBuilder
from agentrl.rollout.usercode import UserCodeError
from agentrl.types import Origin, Outcome, Row, StopReason, Task, Trajectory, Turn

MAX_PLAYING = 16
"""Demonstrations with real tools that are under way at the same time."""


class DemoRow(NamedTuple):
    ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    """True on what the model should have sampled."""


class DemoTask(NamedTuple):
    task: Task
    sibling: int
    """The round it is shown in, which gives a demonstrator with an `rng` another draw."""


def demo_tasks(env_class: type[Env], split: str = "train") -> Iterator[DemoTask]:
    """Endless: all tasks of a split in their order, again and again.

    Raises ValueError when there is nothing to show.
    """
    if not env_class.definition().has_demo:
        raise ValueError(f"{env_class.__name__} has no demo(), so there is nothing to warm up on")
    for sibling in count():
        task = None
        for task in tasks_of(env_class, split):
            yield DemoTask(task, sibling)
        if task is None:
            raise ValueError(f"{env_class.__name__} has no tasks in split {split!r}")


async def demo_rows(
    env_class: type[Env],
    chat: ChatFormat,
    limits: RolloutLimits,
    tasks: Sequence[DemoTask],
    *,
    sandboxes: SandboxSource | None = None,
    roles: Mapping[str, JudgeRole] | None = None,
    run_seed: int = 0,
) -> list[DemoRow]:
    """A row for each of `tasks`, in their order.

    Raises ValueError when a demonstration does not fit the limits or fails.
    """
    written = []
    for task, sibling in tasks:
        env = env_class(task, run_seed=run_seed, sibling=sibling)
        row = await _written(env, chat, limits)
        if row is None:
            break
        written.append(row)
    else:
        return written
    rollouts = ScriptedRollouts(
        env_class, chat, limits, sandboxes=sandboxes, roles=roles, run_seed=run_seed
    )
    return await _play_all(rollouts, tasks)


async def _play_all(rollouts: ScriptedRollouts, tasks: Sequence[DemoTask]) -> list[DemoRow]:
    rows: list[DemoRow] = []
    for start in range(0, len(tasks), MAX_PLAYING):
        async with asyncio.TaskGroup() as group:
            playing = [
                group.create_task(rollouts.play(task, _demo, sibling=sibling))
                for task, sibling in tasks[start : start + MAX_PLAYING]
            ]
        rows += [_played(play.result()) for play in playing]
    return rows


def _demo(env: Env) -> Iterable[Turn]:
    return env.demo()


async def _written(env: Env, chat: ChatFormat, limits: RolloutLimits) -> DemoRow | None:
    """The row, from results that the turns carry; None when tools or a box are needed for it."""
    try:
        return await _from_results(env, chat, limits)
    except NoSandbox:
        return None
    except UserCodeError as error:
        if isinstance(error.__cause__, NoSandbox):
            return None
        raise ValueError(f"the demonstration of task {env.task.id} failed: {error}") from error


async def _from_results(env: Env, chat: ChatFormat, limits: RolloutLimits) -> DemoRow | None:
    await open_env(env, timeout_s=limits.trajectory_timeout_s)
    tokens = TokenBuilder()
    tokens.start(chat.render_start(env.opening))
    max_turns = limits.max_turns or env.max_turns
    for number, turn in enumerate(env.demo()):
        if len(turn.results) != len(turn.calls):
            return None
        ids = chat.render_assistant(turn)
        budget = limits.turn_budget(context=len(tokens), sampled=tokens.num_sampled)
        if number == max_turns:
            raise _does_not_fit(env.task.id, StopReason.MAX_TURNS)
        if len(ids) > budget.tokens:
            raise _does_not_fit(env.task.id, budget.reason)
        tokens.sampled(ids, [0.0] * len(ids), [0] * len(ids))
        env.turns.append(turn)
        if turn.calls:
            tokens.scaffold(chat.scaffold_ids)
            tokens.tool(chat.render_results(turn.results))
            continue
        reply = await reply_of(env, turn)
        if reply is None:
            break
        tokens.scaffold(chat.scaffold_ids)
        tokens.reply(chat.render_reply(reply))
    return _row(tokens.rows()[0])


def _played(trajectory: Trajectory) -> DemoRow:
    if trajectory.stop_reason.is_truncated:
        raise _does_not_fit(trajectory.task_id, trajectory.stop_reason)
    # a reward that only a judge could give is missed by nobody here
    if trajectory.outcome not in (Outcome.FINISHED, Outcome.UNSCORED):
        raise ValueError(
            f"the demonstration of task {trajectory.task_id} failed: {trajectory.error}"
        )
    return _row(trajectory.rows[0])


def _does_not_fit(task_id: str, reason: StopReason) -> ValueError:
    return ValueError(
        f"the demonstration of task {task_id} does not fit the run's limits ({reason}); raise "
        "them in the section rollout, or choose environment options with shorter ones"
    )


def _row(row: Row) -> DemoRow:
    """Up to the last sampled token: what follows it teaches nothing."""
    ids = np.concatenate([segment.ids for segment in row])
    mask = np.concatenate([np.full(len(s), s.origin is Origin.SAMPLED) for s in row])
    end = int(mask.nonzero()[0][-1]) + 1 if mask.any() else 0
    return DemoRow(ids[:end], mask[:end])
