"""Puts a weight update into a model: all of it, or nothing, or the engine has broken."""

from __future__ import annotations

import torch
from torch import nn

from agentrl.engine.engine import EngineError, UnfitWeights, WeightUpdate


def load_into(model: nn.Module, weights: WeightUpdate) -> None:
    """Raises `UnfitWeights`, and changes nothing, unless names and shapes are exactly the model's.

    Raises `EngineError` when the model holds weights of two versions, of which nothing may be
    sampled: the device had no memory for the rest, or failed.
    """
    parameters = dict(model.named_parameters())
    if missing := sorted(parameters.keys() - weights.keys()):
        raise UnfitWeights(f"weight update lacks {len(missing)} parameters, such as {missing[0]}")
    if unknown := sorted(weights.keys() - parameters.keys()):
        raise UnfitWeights(
            f"weight update holds {len(unknown)} names the model lacks, such as {unknown[0]}"
        )
    for name, parameter in parameters.items():
        if weights[name].shape != tuple(parameter.shape):
            raise UnfitWeights(
                f"weight update: {name} has shape {weights[name].shape}, "
                f"the model wants {tuple(parameter.shape)}"
            )
    try:
        with torch.no_grad():
            for name, parameter in parameters.items():
                # torch.tensor copies, so arrays in read-only shared memory are fine.
                parameter.copy_(torch.tensor(weights[name]))
    except Exception as error:
        raise EngineError(f"new weights were written in part: {error!r}") from error
