"""Shipped environments with their real tools in real boxes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice

import pytest

from agentrl import Env, ToolCall, Turn, tool
from agentrl.chat.plain import PlainFormat
from agentrl.models.tokenizer import byte_tokenizer
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.check import check_env
from agentrl.rollout.demos import demo_rows, demo_tasks
from agentrl.rollout.local import ScriptedRollouts
from agentrl.types import Outcome, StopReason, Trajectory
from envs.trail import Trail
from sandboxes import SandboxPool, make_backend

LIMITS = RolloutLimits(max_turn_tokens=64, context_tokens=2048, tool_timeout_s=20)


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    backend = make_backend("auto")
    pool = SandboxPool(backend, size=4)
    yield pool
    await pool.aclose()
    await backend.close()


def chat_of(env_class: type[Env]) -> PlainFormat:
    return PlainFormat(byte_tokenizer().backend_tokenizer, env_class.definition().schemas)


def sh(cmd: str) -> Turn:
    return Turn(calls=(ToolCall("sh", {"cmd": cmd}),))


async def play(
    env_class: type[Trail],
    pool: SandboxPool,
    script: Callable[[Env], Iterator[Turn]],
    limits: RolloutLimits = LIMITS,
) -> Trajectory:
    task = next(iter(env_class.tasks("eval")))
    rollouts = ScriptedRollouts(env_class, chat_of(env_class), limits, sandboxes=pool)
    return await rollouts.play(task, script, split="eval")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"decoys": 4, "sums": 0.5}])
async def test_trail_checks_out(pool: SandboxPool, options: dict[str, float]) -> None:
    env_class = Trail.configure(options)
    report = await check_env(env_class, chat_of(env_class), LIMITS, sandboxes=pool)
    assert report.problems == ()
    assert (report.demo_reward, report.empty_reward) == (1.0, 0.0)
    assert pool.metrics().leased == 0


@pytest.mark.slow
async def test_promised_results_give_the_rows_that_real_tools_give(pool: SandboxPool) -> None:
    class Unpromised(Trail):
        def demo(self) -> Iterator[Turn]:
            return (Turn(turn.text, turn.calls) for turn in super().demo())

    tasks = list(islice(demo_tasks(Trail), 8))
    promised = await demo_rows(Trail, chat_of(Trail), LIMITS, tasks)
    played = await demo_rows(Unpromised, chat_of(Trail), LIMITS, tasks, sandboxes=pool)
    assert [row.ids.tolist() for row in promised] == [row.ids.tolist() for row in played]


async def test_what_goes_wrong_in_the_box_is_told_and_the_rollout_goes_on(
    pool: SandboxPool,
) -> None:
    def script(env: Env) -> Iterator[Turn]:
        yield sh("cat nowhere; exit 3")
        yield sh("exit 7")
        yield from env.demo()

    trajectory = await play(Trail.configure({"spare_turns": 2}), pool, script)
    first, second = (turn.results[0] for turn in trajectory.turns[:2])
    assert "No such file" in first.text
    assert second.text == "(exit code 7)"
    assert (first.status, second.status, trajectory.reward) == ("ok", "ok", 1.0)


async def test_a_tool_that_hangs_is_told_and_the_box_lives_on(pool: SandboxPool) -> None:
    def script(env: Env) -> Iterator[Turn]:
        yield sh("sleep 600")
        yield from env.demo()

    limits = RolloutLimits(max_turn_tokens=64, tool_timeout_s=1.0)
    trajectory = await play(Trail, pool, script, limits)
    assert trajectory.turns[0].results[0].text == "timed out after 1 s"
    assert (trajectory.outcome, trajectory.reward) == (Outcome.FINISHED, 1.0)


async def test_a_box_that_is_lost_is_no_wrong_answer(pool: SandboxPool) -> None:
    class Fragile(Trail):
        @tool
        async def sh(self, cmd: str) -> str:
            await self.sandbox.close()
            return await super().sh(cmd)

    trajectory = await play(Fragile, pool, lambda env: iter(env.demo()))
    assert (trajectory.outcome, trajectory.stop_reason, trajectory.reward) == (
        Outcome.INFRA_ERROR,
        StopReason.INFRA_ERROR,
        None,
    )
    assert pool.metrics().leased == 0


async def test_tasks_of_one_trail_never_share_a_box(pool: SandboxPool) -> None:
    seen = []

    class Spies(Trail):
        async def start(self) -> str:
            seen.append(self.sandbox.sandbox_id)
            return await super().start()

    rollouts = ScriptedRollouts(Spies, chat_of(Spies), LIMITS, sandboxes=pool)
    for task in islice(Spies.tasks("train"), 3):
        await rollouts.play(task, lambda env: env.demo())
    assert len(set(seen)) == 3
