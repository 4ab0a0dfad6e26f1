import asyncio
from collections.abc import AsyncIterator
from copy import deepcopy
from threading import Event

import pytest
import pytest_asyncio
import torch
from tiny_models import tiny_qwen
from transformers import PreTrainedModel


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
async def paced(model: PreTrainedModel) -> AsyncIterator[PreTrainedModel]:
    """Computes once in each turn of the event loop, however little of the machine that gets: whoever
    acts on a turn of hundreds of tokens finds it running."""
    pulse = Event()

    async def beat() -> None:
        while True:
            pulse.set()
            await asyncio.sleep(0.002)

    def wait_for_a_beat(*_: object) -> None:
        pulse.wait()
        pulse.clear()

    beating = asyncio.create_task(beat())
    model.register_forward_pre_hook(wait_for_a_beat)
    yield model
    beating.cancel()
