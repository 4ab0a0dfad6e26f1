"""A weight update is taken whole, or refused whole with the reason."""

import numpy as np
import pytest
import torch
from tiny_models import tiny_qwen, weights_of
from transformers import PreTrainedModel

from agentrl.engine.weights import load_into


def test_weights_are_copied_in_and_shared_with_tied_ones(model: PreTrainedModel) -> None:
    update = weights_of(tiny_qwen(seed=3))
    assert "lm_head.weight" not in update
    for array in update.values():
        array.flags.writeable = False  # as in shared memory
    load_into(model, update)
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.detach().numpy(), update[name])
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_float32_updates_go_into_half_precision(model: PreTrainedModel) -> None:
    update = weights_of(tiny_qwen(seed=3))
    load_into(model.bfloat16(), update)
    got = model.model.norm.weight
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, torch.tensor(update["model.norm.weight"]).bfloat16())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), r"lacks 1 parameters, such as model\.norm\.weight"),
        (lambda w: w.update(x=np.zeros(1)), "holds 1 names the model lacks, such as x"),
        (
            lambda w: w.update({"model.norm.weight": np.zeros(3)}),
            r"model\.norm\.weight has shape \(3,\), the model wants \(32,\)",
        ),
    ],
)
def test_an_update_that_does_not_fit_changes_nothing(
    model: PreTrainedModel, change: object, message: str
) -> None:
    before = weights_of(model)
    update = dict(weights_of(tiny_qwen(seed=3)))
    change(update)  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        load_into(model, update)
    for name, array in weights_of(model).items():
        assert np.array_equal(array, before[name])
