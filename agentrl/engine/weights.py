"""Puts a weight update into a model, all of it or nothing."""

from __future__ import annotations

import torch
from torch import nn

from agentrl.engine.engine import WeightUpdate


def load_into(model: nn.Module, weights: WeightUpdate) -> None:
    """Raises ValueError, and changes nothing, unless names and shapes are exactly the model's."""
    parameters = dict(model.named_parameters())
    if missing := sorted(parameters.keys() - weights.keys()):
        raise ValueError(f"weight update lacks {len(missing)} parameters, such as {missing[0]}")
    if unknown := sorted(weights.keys() - parameters.keys()):
        raise ValueError(
            f"weight update holds {len(unknown)} names the model lacks, such as {unknown[0]}"
        )
    for name, parameter in parameters.items():
        if weights[name].shape != tuple(parameter.shape):
            raise ValueError(
                f"weight update: {name} has shape {weights[name].shape}, "
                f"the model wants {tuple(parameter.shape)}"
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            # torch.tensor copies, so arrays in read-only shared memory are fine.
            parameter.copy_(torch.tensor(weights[name]))
