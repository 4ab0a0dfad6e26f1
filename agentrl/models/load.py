"""Turns the `model` section of a run file into a model and its tokenizer.

Nothing is fetched: weights are made here, lie on this machine, or come inside an installed
package. Whatever the source, the result is a plain Hugging Face model that `save_pretrained` can
write; GGUF weights are therefore unpacked into an unquantized model.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from agentrl.config.sections import PathModel, ScratchModel, SmolLM2Model
from agentrl.models.backend import smollm2_file
from agentrl.models.scratch import scratch_model
from agentrl.models.tokenizer import byte_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A causal language model, on the CPU and in eval mode, and the tokenizer that fits it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_model(section: ScratchModel | PathModel | SmolLM2Model, *, seed: int) -> LoadedModel:
    """`seed` decides the weights of a model made from scratch."""
    match section:
        case ScratchModel():
            tokenizer = byte_tokenizer()
            model = scratch_model(section, tokenizer, seed=seed)
            return LoadedModel(model=model.eval(), tokenizer=tokenizer)
        case PathModel():
            return _load_path(Path(section.path).expanduser(), getattr(torch, section.dtype))
        case SmolLM2Model():
            return _load_gguf(smollm2_file(), getattr(torch, section.dtype))
    assert_never(section)


def _load_path(path: Path, dtype: torch.dtype) -> LoadedModel:
    if path.suffix == ".gguf" and path.is_file():
        return _load_gguf(path, dtype)
    if not (path / "config.json").is_file():
        raise ValueError(
            f"model.path: no model at {path}; wanted a folder with config.json, tokenizer and "
            "weights, or a .gguf file"
        )
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    return LoadedModel(model=model.eval(), tokenizer=tokenizer)


def _load_gguf(path: Path, dtype: torch.dtype) -> LoadedModel:
    missing = [name for name in ("gguf", "accelerate") if not importlib.util.find_spec(name)]
    if missing:
        raise ValueError(
            f"model: reading {path.name} needs the package(s) {', '.join(missing)}; "
            "pip install 'agentrl-runtime[smollm2]'"
        )
    source = {"gguf_file": path.name, "local_files_only": True}
    quantized = AutoModelForCausalLM.from_pretrained(path.parent, dtype=dtype, **source)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **source)
    return LoadedModel(model=_unquantized(quantized, dtype).eval(), tokenizer=tokenizer)


def _unquantized(quantized: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The same weights in a model that remembers no GGUF file: one that does refuses to be saved."""
    config = quantized.config
    del config.quantization_config
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.load_state_dict(quantized.state_dict())
    return model
