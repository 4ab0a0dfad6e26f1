"""Rollouts over the embedded engine: what rows hold is what the weights say, aborts and all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import numpy as np
import pytest
import torch

from agentrl import Env, Task, Turn, reward
from agentrl.chat.plain import PlainFormat
from agentrl.config.sections import ScratchModel
from agentrl.engine.engine import Sampling
from agentrl.engine.torch_engine import TorchEngine
from agentrl.models.load import LoadedModel, load_model
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.local import LocalDispatcher
from agentrl.rollout.runner import RolloutRunner
from agentrl.rollout.sampler import MAX_FRUITLESS_TRIES
from agentrl.types import Origin, Outcome, Trajectory

CONTEXT_TOKENS = 160
TEMPERATURE = 0.8


class Talks(Env):
    """Answers whatever is said, so that untrained weights play many turns."""

    max_turns = 6

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        return (Task(f"{n}", prompt=f"number {n}") for n in range(12))

    async def reply(self, turn: Turn) -> str:
        return f"you said {len(turn.text)}"

    @reward
    async def turns_played(self) -> float:
        return float(len(self.turns))


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    section = ScratchModel.model_validate(
        {"from": "scratch", "hidden_size": 32, "intermediate_size": 64, "num_heads": 2}
    )
    return load_model(section, seed=0)


@pytest.fixture
async def engine(loaded: LoadedModel) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(loaded.model, num_slots=4, context_tokens=CONTEXT_TOKENS)
    yield engine
    await engine.close()


async def play(loaded: LoadedModel, engine: TorchEngine) -> list[Trajectory]:
    chat = PlainFormat(loaded.tokenizer.backend_tokenizer)
    # an untrained model rarely says <end>; with a third of all bytes it stops every few tokens
    chat.stop_ids = (*chat.stop_ids, *range(85))
    runner = RolloutRunner(
        env_class=Talks,
        chat=chat,
        limits=RolloutLimits(max_turn_tokens=24, context_tokens=CONTEXT_TOKENS),
        sampling=Sampling(temperature=TEMPERATURE),
        dispatcher=LocalDispatcher(engine),
    )
    async with asyncio.TaskGroup() as group:
        playing = [
            group.create_task(
                runner.run(Attempt(trajectory_id=task.id, task=task, group_id="g", sibling=0))
            )
            for task in Talks.tasks("train")
        ]
    return [task.result() for task in playing]


def assert_rows_say_what_the_weights_say(
    loaded: LoadedModel, trajectories: list[Trajectory]
) -> None:
    for trajectory in trajectories:
        (row,) = trajectory.rows
        ids = torch.from_numpy(np.concatenate([s.ids for s in row])).long()
        with torch.no_grad():
            logits = loaded.model(ids[None, :-1]).logits[0] / TEMPERATURE
        expected = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0].numpy()
        sampled = np.concatenate([np.full(len(s), s.origin is Origin.SAMPLED) for s in row])[1:]
        recorded = np.concatenate([s.logprobs for s in row if s.logprobs is not None])
        np.testing.assert_allclose(recorded, expected[sampled], atol=1e-4)


async def test_rows_say_what_the_weights_say(loaded: LoadedModel, engine: TorchEngine) -> None:
    trajectories = await play(loaded, engine)
    assert max(len(t.turns) for t in trajectories) > 2
    assert {t.outcome for t in trajectories} <= {Outcome.FINISHED, Outcome.TRUNCATED}
    assert_rows_say_what_the_weights_say(loaded, trajectories)
    assert (await engine.stats()).running == 0

    again = await play(loaded, engine)
    for one, other in zip(trajectories, again, strict=True):
        for before, after in zip(one.rows[0], other.rows[0], strict=True):
            assert before.ids.tolist() == after.ids.tolist()


async def test_aborts_lose_nothing(loaded: LoadedModel, engine: TorchEngine) -> None:
    async def disturb() -> None:
        # fewer times than a turn may be aborted before its first token
        for _ in range(MAX_FRUITLESS_TRIES - 1):
            while not await engine.abort_all():  # noqa: ASYNC110 - nothing tells when it is busy
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.02)

    disturbing = asyncio.create_task(disturb())
    trajectories = await play(loaded, engine)
    disturbing.cancel()
    assert any(len(t.placements) > len(t.turns) for t in trajectories)
    assert {t.outcome for t in trajectories} <= {Outcome.FINISHED, Outcome.TRUNCATED}
    assert_rows_say_what_the_weights_say(loaded, trajectories)
