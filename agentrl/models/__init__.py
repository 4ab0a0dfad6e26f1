"""Models and their tokenizers: made from scratch, or loaded from this machine."""

from agentrl.models.load import LoadedModel, load_model
from agentrl.models.tokenizer import byte_tokenizer

__all__ = ["LoadedModel", "byte_tokenizer", "load_model"]
