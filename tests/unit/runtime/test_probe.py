"""What the probe measures is what a worker of the run will spend, not what a process spends once."""

import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.config.load import load_config
from agentrl.models.load import LoadedModel, load_model
from agentrl.runtime import probe

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"
SMALL = ("model.hidden_size=32", "model.num_layers=1", "runtime.slots=4", "runtime.pin_cores=false")
ONCE_S = 1e6


def test_what_only_the_first_model_of_a_process_costs_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as its imports, which made changes of role look ten times as long as they were."""
    loads, more_s = count(), [0.0]

    def slow_at_first(section: Any, *, seed: int) -> LoadedModel:
        if next(loads) == 0:
            more_s[0] = ONCE_S
        return load_model(section, seed=seed)

    torch.set_num_threads(1)
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + more_s[0])
    monkeypatch.setattr(probe, "time", clock)
    monkeypatch.setattr(probe, "load_model", slow_at_first)
    assert 0 < probe.measure(load_config(QUICKSTART, SMALL)).serving_start_s < ONCE_S
