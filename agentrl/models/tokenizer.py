"""The tokenizer of models made from scratch: one id a byte, and a few special tokens.

Nothing is learned and nothing is downloaded, so a run starts from nothing but its seed. Ids 0-255
are the bytes themselves; special tokens follow.

Invariants
- `decode(encode(text)) == text` for every text that UTF-8 can hold.
- Text never becomes a special token: a file that holds the word `<end>` is five bytes to the model,
  not the end of its turn. Special ids come from `convert_tokens_to_ids` alone.
- Every id a model of `len(tokenizer)` outputs can sample has a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = (
    "<pad>",
    "<system>",
    "<user>",
    "<assistant>",
    "<tool>",
    "<call>",
    "<think>",
    "</think>",
    "<end>",
)
NUM_BYTES = 256
_ALIGNMENT = 16
"""The vocabulary is filled up to a multiple of this, which matrix kernels like."""


def byte_backend() -> Tokenizer:
    """A new one, for processes that hold no model."""
    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    num_unused = -(NUM_BYTES + len(SPECIAL_TOKENS)) % _ALIGNMENT
    names = [*SPECIAL_TOKENS, *(f"<unused_{i}>" for i in range(num_unused))]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The same for a model; it is saved and loaded as any other tokenizer of its class."""
    # transformers takes seconds to import, and most processes only want the ids
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=byte_backend(),
        pad_token="<pad>",
        eos_token="<end>",
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies.

    Bytes that print in Latin-1 stand for themselves, the others for characters from U+0100 on, in
    order; the space is one of those, and so is the soft hyphen.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(NUM_BYTES) if byte not in printable]
    shifted = {byte: NUM_BYTES + rank for rank, byte in enumerate(others)}
    return [chr(shifted.get(byte, byte)) for byte in range(NUM_BYTES)]
