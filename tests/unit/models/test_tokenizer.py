"""The byte-level tokenizer loses nothing and never reads a special token out of text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentrl.models.tokenizer import NUM_BYTES, SPECIAL_TOKENS, byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer()


def test_ids_of_text_are_its_bytes(tokenizer: PreTrainedTokenizerFast) -> None:
    every_character = "".join(map(chr, range(0x250))) + " \n\t☃ 🦜"
    assert tokenizer.encode(every_character) == list(every_character.encode())


@given(text=st.text(st.characters(codec="utf-8")))
def test_round_trip(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", SPECIAL_TOKENS)
def test_text_never_becomes_a_special_token(tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    ids = tokenizer.encode(f"a{name}b")
    assert max(ids) < NUM_BYTES
    assert tokenizer.decode(ids) == f"a{name}b"


def test_every_id_has_a_token_and_the_size_is_aligned(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == 272
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    assert None not in tokens
    assert len(set(tokens)) == len(tokens)
    special = tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS))
    assert special == list(range(NUM_BYTES, NUM_BYTES + len(SPECIAL_TOKENS)))
    assert tokenizer.decode(special) == "".join(SPECIAL_TOKENS)
    assert tokenizer.decode(special, skip_special_tokens=True) == ""


def test_a_saved_tokenizer_is_the_same(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "hé <end>\x00\x7f\xad"
    assert loaded.encode(text) == list(text.encode())
    assert loaded.decode(loaded.encode(text)) == text
    assert (loaded.pad_token, loaded.eos_token) == ("<pad>", "<end>")
    assert len(loaded) == len(tokenizer)
