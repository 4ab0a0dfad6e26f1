"""A run that stops and goes on equals one that never stopped, through the disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from agentrl.config.sections import TrainSection
from agentrl.models.tokenizer import byte_tokenizer
from agentrl.record.disk import DiskFailed
from agentrl.train import checkpoint, checkpoint_folders
from agentrl.train.checkpoint import load_checkpoint, save_checkpoint
from agentrl.train.optimizer import NonFiniteError
from agentrl.train.trainer import Trainer
from agentrl.types import TrainingSample

MakeModel = Callable[[], Qwen3ForCausalLM]
MakeSample = Callable[..., TrainingSample]

SECTION = TrainSection.model_validate(
    {
        "steps": 10,
        "groups_per_step": 1,
        "loss": {"type": "ppo_clip", "kl_coef": 0.1},
        "optimizer": {"learning_rate": 1e-2},
    }
)


def save(root: Path, model: Qwen3ForCausalLM, trainer: Trainer) -> Path:
    step = trainer.steps_done
    save_checkpoint(
        root,
        step=step,
        model=model,
        tokenizer=byte_tokenizer(),
        state=trainer.state(),
        progress={"cursor": 3, "pending": [1]},
    )
    return root / f"step-{step:06d}"


@pytest.fixture
def saved(tmp_path: Path, make_model: MakeModel, make_sample: MakeSample) -> Path:
    model = make_model()
    trainer = Trainer(model, SECTION, temperature=1.0)
    trainer.step([make_sample(seed=1)])
    return save(tmp_path, model, trainer)


def test_five_steps_and_five_more_equal_ten(
    tmp_path: Path, make_model: MakeModel, make_sample: MakeSample
) -> None:
    straight, first = (Trainer(make_model(), SECTION, temperature=1.0) for _ in range(2))
    for step in range(10):
        straight.step([make_sample(seed=step)])

    model = make_model()
    first = Trainer(model, SECTION, temperature=1.0)
    for step in range(5):
        first.step([make_sample(seed=step)])
    folder = save(tmp_path, model, first)
    drawn = torch.rand(3)

    fresh = make_model()
    with torch.no_grad():
        fresh.model.norm.weight.add_(1)
    state = load_checkpoint(folder, fresh)
    torch.testing.assert_close(torch.rand(3), drawn, rtol=0, atol=0)
    second = Trainer(fresh, SECTION, temperature=1.0)
    second.load_state(state)
    for step in range(5, 10):
        second.step([make_sample(seed=step)])
    for name, value in straight.weights().items():
        np.testing.assert_array_equal(second.weights()[name], value)
    assert checkpoint_folders.read_header(folder).progress == {"cursor": 3, "pending": [1]}


def test_a_run_without_updates_can_be_saved(tmp_path: Path, make_model: MakeModel) -> None:
    model = make_model()
    folder = save(tmp_path, model, Trainer(model, SECTION, temperature=1.0))
    trainer = Trainer(model, SECTION, temperature=1.0)
    trainer.load_state(load_checkpoint(folder, model))
    assert trainer.steps_done == 0


def test_the_folder_loads_with_from_pretrained(saved: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved)
    tokenizer = AutoTokenizer.from_pretrained(saved)
    stored = load_file(saved / "model.safetensors")
    torch.testing.assert_close(model.model.norm.weight, stored["model.norm.weight"])
    assert tokenizer.decode(tokenizer.encode("né")) == "né"


def damage(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change a weight file and let the marker agree with it."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    marker = folder / "complete.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {file.name: file.stat().st_size}))


def test_a_missing_tensor_is_named(saved: Path, make_model: MakeModel) -> None:
    damage(saved, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ValueError, match=r"the weights lack \['model\.norm\.weight'\]"):
        load_checkpoint(saved, make_model())


def test_a_tensor_that_is_not_finite_is_named(saved: Path, make_model: MakeModel) -> None:
    damage(saved, lambda tensors: tensors["model.norm.weight"].fill_(torch.nan))
    with pytest.raises(NonFiniteError, match=r"1 of \d+ tensors .* \['model\.norm\.weight'\]"):
        load_checkpoint(saved, make_model())


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, make_model: MakeModel) -> None:
    model = make_model()
    trainer = Trainer(model, SECTION, temperature=1.0)
    with torch.no_grad():
        model.model.norm.weight[0] = torch.inf
    with pytest.raises(NonFiniteError, match=r"step 0: .*model\.norm\.weight"):
        save(tmp_path, model, trainer)
    assert checkpoint_folders.latest_checkpoint(tmp_path) is None


def test_another_model_is_refused_with_both_shapes(saved: Path, make_model: MakeModel) -> None:
    config = make_model().config
    config.num_key_value_heads = 2
    with pytest.raises(ValueError, match=r"k_proj\.weight is \(8, 16\) there and \(16, 16\) in"):
        load_checkpoint(saved, Qwen3ForCausalLM(config))


def test_an_optimizer_of_another_model_is_refused(saved: Path, make_model: MakeModel) -> None:
    state = load_checkpoint(saved, make_model())
    config = make_model().config
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    trainer = Trainer(Qwen3ForCausalLM(config).eval(), SECTION, temperature=1.0)
    with pytest.raises(ValueError, match=r"optimizer state: \d+ tensors are missing, unknown"):
        trainer.load_state(state)


def test_a_disk_that_refuses_a_checkpoint_is_named_and_leaves_nothing(
    tmp_path: Path, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", refuse)
    model = make_model()
    with pytest.raises(DiskFailed, match=rf"{tmp_path}.*No space left on device.*make room"):
        save(tmp_path, model, Trainer(model, SECTION, temperature=1.0))
    assert list(tmp_path.iterdir()) == []
