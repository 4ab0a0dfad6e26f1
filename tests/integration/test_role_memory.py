"""What a worker's process holds after it has changed its role many times: the memory comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from training import judged

from agentrl.config.load import load_config
from agentrl.models.load import load_model
from agentrl.runtime.parameters import Published
from agentrl.runtime.worker import Worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LARGE = {"hidden_size": 512, "intermediate_size": 1536, "num_layers": 4, "num_heads": 8}
ROUNDS = 12
WARM_UP_ROUNDS = 4
"""In which the heap takes the shape that it keeps."""


class Store:
    """The parameter store without its process: the newest weights, whenever asked."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self._weights = weights
        self.pull = self

    async def remote(self, version: int | None) -> Published:
        async def weights() -> dict[str, Any]:
            return self._weights

        return Published(0, [weights()])


async def rounds(worker: Worker) -> list[int]:
    """Megabytes that the process holds, in a role without anything, after each round."""
    process, held = psutil.Process(), []
    for _ in range(ROUNDS):
        await worker.become_rollout("secret")
        await worker.become_genrm("secret", Path("no judge was taught"))
        await worker.become_training(None)
        _ = worker._training.trainer
        await worker.leave_role()
        held.append(process.memory_info().rss >> 20)
    return held


def test_memory_comes_back_when_a_role_is_left(tmp_path: Path) -> None:
    config = judged()
    config["model"] |= LARGE
    config["judge"]["model"] |= LARGE
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    loaded = load_config(tmp_path / "run.yaml")
    model = load_model(loaded.model, seed=0).model
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    size_mb = sum(array.nbytes for array in weights.values()) >> 20
    assert size_mb >= 30, "a context that stays must be seen"
    held = asyncio.run(rounds(Worker(loaded, Store(weights), (), 1)))
    # three models a round: one that stayed would show in each of the later rounds
    later = held[WARM_UP_ROUNDS - 1 :]
    assert later[-1] - later[0] < (len(later) - 1) * size_mb / 2, held
