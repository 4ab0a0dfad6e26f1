"""What the probe measures is what a worker of the run will spend, not what a process spends once."""

import time
from itertools import count

import pytest
import torch

from agentrl.config.sections import ScratchModel
from agentrl.models.load import LoadedModel, load_model
from agentrl.runtime import probe

MODEL = ScratchModel(
    **{"from": "scratch"},
    hidden_size=32,
    intermediate_size=64,
    num_layers=1,
    num_heads=2,
    head_dim=16,
)
ONCE_S = 3.0


def test_what_only_the_first_model_of_a_process_costs_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as its imports, which made changes of role look ten times as long as they were."""
    torch.set_num_threads(1)
    calls = count()

    def slow_at_first(section: ScratchModel, *, seed: int) -> LoadedModel:
        if next(calls) == 0:
            time.sleep(ONCE_S)
        return load_model(section, seed=seed)

    monkeypatch.setattr(probe, "load_model", slow_at_first)
    _, start_s = probe._serving(MODEL, slots=4, context_tokens=64)
    assert 0 < start_s < ONCE_S
