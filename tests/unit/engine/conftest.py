import asyncio
from collections.abc import AsyncIterator
from copy import deepcopy
from threading import Event

import pytest
import pytest_asyncio
import torch
from tiny_models import tiny_qwen
from transformers import PreTrainedModel

from agentrl.engine.batcher import Batcher


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_model() -> PreTrainedModel:
    """For tests that leave the weights alone."""
    return tiny_qwen()


@pytest.fixture
def model(shared_model: PreTrainedModel) -> PreTrainedModel:
    return deepcopy(shared_model)


@pytest_asyncio.fixture
async def paced(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PreTrainedModel]:
    """Its engine computes once in each turn of the event loop, however little of the machine that
    gets: whoever acts on a turn of hundreds of tokens finds it running."""
    pulse, step = Event(), Batcher.step

    async def beat() -> None:
        while True:
            pulse.set()
            await asyncio.sleep(0.002)

    def step_in_time(batcher: Batcher) -> None:
        pulse.wait()
        pulse.clear()
        step(batcher)

    beating = asyncio.create_task(beat())
    monkeypatch.setattr(Batcher, "step", step_in_time)  # not every pass calls the model's modules
    yield model
    beating.cancel()
