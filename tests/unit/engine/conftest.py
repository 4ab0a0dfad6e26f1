from copy import deepcopy

import pytest
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
