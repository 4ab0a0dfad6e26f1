"""What a checkpoint holds: everything a run needs to go on as if it had never stopped.

The model and its tokenizer lie at the top of the folder in Hugging Face's own layout, so the
folder loads with `from_pretrained` and can be the `model.path` of another run. The optimizer, the
reference weights of a KL penalty and torch's random state lie below `training/`, out of the way of
engines that load every `*.safetensors` of a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentrl.record.disk import needed_on_disk
from agentrl.train.checkpoint_folders import CheckpointHeader, new_checkpoint, read_header
from agentrl.train.optimizer import NonFiniteError, OptimizerState
from agentrl.train.trainer import TrainerState
from agentrl.types import Json

_STATE = Path("training", "state.safetensors")
_OPTIMIZER, _REFERENCE, _RNG = "optimizer/", "reference/", "rng/torch"


def save_checkpoint(
    root: Path,
    *,
    step: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    state: TrainerState,
    progress: Mapping[str, Json],
) -> None:
    """Write `root/step-NNNNNN`; `progress` is the run's own and comes back as it was given.

    Raises `DiskFailed`.
    """
    _refuse_non_finite(f"step {step}", dict(model.named_parameters()))
    header = CheckpointHeader(
        step=step,
        progress=progress,
        trainer={"steps_done": state.steps_done, "updates": state.optimizer.updates},
    )
    tensors = {
        **{_OPTIMIZER + name: tensor for name, tensor in state.optimizer.tensors.items()},
        **{_REFERENCE + name: tensor for name, tensor in state.reference.items()},
        _RNG: torch.get_rng_state(),
    }
    with needed_on_disk(root, SafetensorError), new_checkpoint(root, header) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / _STATE).parent.mkdir()
        save_file({name: tensor.cpu() for name, tensor in tensors.items()}, folder / _STATE)


def load_checkpoint(folder: Path, model: PreTrainedModel) -> TrainerState:
    """Fills the model, sets torch's random state, and returns the trainer's."""
    header = read_header(folder)
    _load_weights(folder, model)
    tensors = load_file(folder / _STATE)
    _refuse_non_finite(f"checkpoint {folder}", tensors)
    torch.set_rng_state(tensors[_RNG])
    return TrainerState(
        steps_done=header.trainer["steps_done"],
        optimizer=OptimizerState(
            updates=header.trainer["updates"], tensors=_below(_OPTIMIZER, tensors)
        ),
        reference=_below(_REFERENCE, tensors),
    )


def _load_weights(folder: Path, model: PreTrainedModel) -> None:
    """Through `from_pretrained`, which alone knows how each architecture names what it saves."""
    # With `output_loading_info` it returns a pair, which its annotation leaves out.
    loaded: Any = type(model).from_pretrained(
        folder, dtype=model.dtype, local_files_only=True, output_loading_info=True
    )
    saved, info = loaded
    if info["missing_keys"]:
        raise ValueError(
            f"checkpoint {folder}: the weights lack {sorted(info['missing_keys'])}; "
            "resume from another one"
        )
    found, wanted = dict(saved.named_parameters()), dict(model.named_parameters())
    shapes = [{name: tuple(p.shape) for name, p in named.items()} for named in (found, wanted)]
    if shapes[0] != shapes[1]:
        name = min(name for name, _ in shapes[0].items() ^ shapes[1].items())
        raise ValueError(
            f"checkpoint {folder}: {name} is {shapes[0].get(name)} there and "
            f"{shapes[1].get(name)} in this model; resume with the model section of the run"
        )
    _refuse_non_finite(f"checkpoint {folder}", found)
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(found[name])


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _refuse_non_finite(where: str, tensors: Mapping[str, Tensor]) -> None:
    names = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if names:
        raise NonFiniteError(
            f"{where}: {len(names)} of {len(tensors)} tensors are not finite: {names[:3]}"
        )
