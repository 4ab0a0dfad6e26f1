"""Proves that an environment can teach: `agentrl env check`.

Its own demonstration must earn the whole reward and a policy that says nothing must not. That one
rule finds broken graders, tasks that cannot be solved and answers that leak. Beside it: tasks are
the same on every iteration, members of a group get the same start, and the results that `demo()`
promises are the ones the tools give. What only a contest with other attempts could give is left
out on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from agentrl.chat.format import ChatFormat
from agentrl.env import Env, tasks_of
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.dispatch import SandboxSource
from agentrl.rollout.judge import JudgeRole
from agentrl.rollout.local import ScriptedRollouts
from agentrl.schema import ToolSchema
from agentrl.types import Outcome, Task, Trajectory, Turn

SPLITS = ("train", "eval")
FULL_REWARD = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvReport:
    env: str
    num_tasks: int
    demo_reward: float | None
    """Mean over the tasks; None when no demonstration was scored."""
    empty_reward: float | None
    """The same of the policy that says nothing."""
    tools: tuple[ToolSchema, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


async def check_env(
    env_class: type[Env],
    chat: ChatFormat,
    limits: RolloutLimits,
    *,
    tasks_per_split: int = 4,
    sandboxes: SandboxSource | None = None,
    roles: Mapping[str, JudgeRole] | None = None,
    run_seed: int = 0,
) -> EnvReport:
    rollouts = ScriptedRollouts(
        env_class, chat, limits, sandboxes=sandboxes, roles=roles, run_seed=run_seed
    )
    problems: list[str] = []
    if not env_class.definition().has_demo:
        problems.append("there is no demo(), so nothing shows that the tasks can be solved")
    tasks = {split: list(islice(tasks_of(env_class, split), tasks_per_split)) for split in SPLITS}
    for split, them in tasks.items():
        again = [task.id for task in islice(tasks_of(env_class, split), tasks_per_split)]
        problems += _task_problems(split, [task.id for task in them], again)
    shared = {task.id for task in tasks["train"]} & {task.id for task in tasks["eval"]}
    if shared:
        problems.append(f"tasks in both train and eval: {', '.join(sorted(shared))}")
    demos, silents = [], []
    for where, task in [(split, task) for split, them in tasks.items() for task in them]:
        demo, silent, found = await _check_task(rollouts, task, where)
        problems += [f"task {task.id}: {problem}" for problem in found]
        demos.append(demo)
        silents.append(silent)
    return EnvReport(
        env=env_class.__name__,
        num_tasks=len(demos),
        demo_reward=_mean_reward(demos),
        empty_reward=_mean_reward(silents),
        tools=env_class.definition().schemas,
        problems=tuple(problems),
    )


def _task_problems(split: str, ids: list[str], again: list[str]) -> Iterator[str]:
    if not ids:
        yield f"tasks({split!r}) yields no task"
    if ids != again:
        yield f"tasks({split!r}) yields other tasks the second time: {ids} and {again}"
    if len(set(ids)) < len(ids):
        yield f"tasks({split!r}) yields an id twice: {ids}"


async def _check_task(
    rollouts: ScriptedRollouts, task: Task, split: str
) -> tuple[Trajectory, Trajectory, list[str]]:
    said: list[Turn] = []

    def demo(env: Env) -> Iterator[Turn]:
        for turn in env.demo():
            said.append(turn)
            yield turn

    shown = await rollouts.play(task, demo, split=split)
    silent = await rollouts.play(task, lambda env: (), sibling=1, split=split)
    problems = [
        *_broken(shown, "demo()"),
        *_broken(silent, "a policy that says nothing"),
        *_wrong_results(said, shown.turns),
    ]
    wanted = FULL_REWARD - sum(entry.weight for entry in shown.entries)
    if said and shown.reward is not None and shown.reward < wanted:
        problems.append(f"demo() earns {shown.reward:g}, wanted {wanted:g} ({shown.stop_reason})")
    if silent.reward is not None and silent.reward >= FULL_REWARD:
        problems.append(f"a policy that says nothing earns {silent.reward:g}")
    if shown.messages != silent.messages:
        problems.append("start() differs between members of a group; draw from self.task_rng")
    return shown, silent, problems


def _broken(trajectory: Trajectory, who: str) -> list[str]:
    if trajectory.outcome in (Outcome.FINISHED, Outcome.TRUNCATED):
        return []
    return [f"{who} ends in {trajectory.outcome}: {trajectory.error}"]


def _wrong_results(said: list[Turn], played: tuple[Turn, ...]) -> Iterator[str]:
    for number, (promised, real) in enumerate(zip(said, played, strict=False)):
        expected = [result.text for result in promised.results]
        got = [result.text for result in real.results]
        if expected and expected != got:
            yield f"turn {number} of demo() promises the results {expected}, the tools give {got}"


def _mean_reward(trajectories: list[Trajectory]) -> float | None:
    rewards = [t.reward for t in trajectories if t.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None
