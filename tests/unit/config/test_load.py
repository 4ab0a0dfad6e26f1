from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from agentrl.config.load import ConfigError, load_config, parse_config
from agentrl.config.run import RunConfig
from sandboxes import BackendName

SHORTEST = """\
env: {name: trail}
model: {from: scratch}
train: {steps: 4, groups_per_step: 2}
"""


def load(text: str = "", *overrides: str) -> RunConfig:
    return parse_config(SHORTEST + text, source="run.yaml", overrides=overrides)


def problems(text: str = "", *overrides: str, base: str = SHORTEST) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(base + text, source="run.yaml", overrides=overrides)
    return str(caught.value).splitlines()


def test_the_quickstart_loads() -> None:
    config = load_config(Path("configs/quickstart.yaml"))
    assert config.train.optimizer.learning_rate == 2e-4
    assert config.warmup.env_options == {"max_hops": 2, "give_up": 0.6}


@pytest.mark.parametrize("path", sorted(Path("configs").glob("*.yaml")), ids=str)
def test_every_shipped_run_file_loads(path: Path) -> None:
    load_config(path)


def test_a_key_of_another_choice_is_not_looked_for_in_another_section() -> None:
    text = "judge: {type: server, url: 'http://h', model: m, slots: 3}\n"
    (problem,) = problems(text)
    assert problem.startswith("run.yaml:4: unknown key `judge.slots`; known here: max_tokens")


def test_numbers_and_words_that_yaml_1_1_reads_wrongly() -> None:
    config = load(
        "name: no\nwarmup: {learning_rate: 1e-6}\n"
        "rollout: {temperature: 1}\nsandbox: {backend: subprocess}\n"
    )
    assert config.name == "no"
    assert config.warmup.learning_rate == 1e-6
    assert config.rollout.temperature == 1.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "rollout:\n  groupsize: 4\n",
            "run.yaml:5: unknown key `rollout.groupsize`; did you mean `group_size`?",
        ),
        (
            "rollout:\n  group-size: 4\n",
            "run.yaml:5: unknown key `rollout.group-size`; did you mean `group_size`?",
        ),
        (
            "learning_rate: 1.0e-3\n",
            "run.yaml:4: unknown key `learning_rate`; "
            "did you mean `warmup.learning_rate` or `judge.warmup.learning_rate` or "
            "`train.optimizer.learning_rate`?",
        ),
        (
            "eval: {xyzzy: 1}\n",
            "run.yaml:4: unknown key `eval.xyzzy`; known here: every_steps, tasks",
        ),
        (
            "rollout: {group_size: '8'}\n",
            "run.yaml:4: `rollout.group_size`: wanted an integer, got '8'",
        ),
        (
            "rollout: {group_size: 8.0}\n",
            "run.yaml:4: `rollout.group_size`: wanted an integer, got 8.0",
        ),
        (
            "rollout: {group_size: true}\n",
            "run.yaml:4: `rollout.group_size`: wanted an integer, got true",
        ),
        (
            "rollout: {temperature: hot}\n",
            "run.yaml:4: `rollout.temperature`: wanted a number, got 'hot'",
        ),
        (
            "rollout: {temperature: 1e999}\n",
            "run.yaml:4: `rollout.temperature`: wanted a finite number, got inf",
        ),
        (
            "runtime: {pin_cores: no}\n",
            "run.yaml:4: `runtime.pin_cores`: wanted true or false, got 'no'",
        ),
        ("name: 5\n", "run.yaml:4: `name`: wanted text (put it in quotes), got 5"),
        (
            "name: ../up\n",
            "run.yaml:4: `name`: wanted text that matches ^[A-Za-z0-9_][A-Za-z0-9_.-]*$, "
            "got '../up'",
        ),
        (
            f"name: {'x' * 101}\n",
            f"run.yaml:4: `name`: wanted text of at most 100 characters, got '{'x' * 79}",
        ),
        ("seed: 4294967296\n", "run.yaml:4: `seed`: wanted at most 4294967295, got 4294967296"),
        ("seed: -1\n", "run.yaml:4: `seed`: wanted at least 0, got -1"),
        ("warmup: {grad_clip: 0}\n", "run.yaml:4: `warmup.grad_clip`: wanted more than 0, got 0"),
        ("sandbox:\n", "run.yaml:4: `sandbox`: wanted a mapping, got nothing"),
        ("trackers: wandb\n", "run.yaml:4: `trackers`: wanted a list, got 'wandb'"),
        (
            "trackers: [tensorbord]\n",
            "run.yaml:4: `trackers.0`: wanted one of 'tensorboard' or 'wandb', got 'tensorbord'",
        ),
        (
            "sandbox: {backend: bublewrap}\n",
            f"run.yaml:4: `sandbox.backend`: wanted {' | '.join(get_args(BackendName))}, "
            "got 'bublewrap'; did you mean `bubblewrap`?",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_to_write(text: str, problem: str) -> None:
    assert problems(text) == [problem]


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ("advantage: {type: grop}", "`train.advantage.type`: wanted grpo | drgrpo | rloo, got "
         "'grop'; did you mean `grpo`?"),
        ("advantage: {epsilon: 1e-3}", "`train.advantage.type`: wanted grpo | drgrpo | rloo, got "
         "nothing"),
        ("advantage: {type: rloo, epsilon: 1}", "unknown key `train.advantage.epsilon`; known "
         "here: type, zero_variance"),
        ("loss: {clip_low: 0.3}", "`train.loss.type` is missing; wanted ppo_clip: The only loss "
         "there is."),
        ("optimizer: {betas: [0.9]}", "`train.optimizer.betas.1` is missing"),
        ("optimizer: {betas: [0.9, 1]}", "`train.optimizer.betas.1`: wanted less than 1, got 1"),
    ],
)  # fmt: skip
def test_mistakes_inside_unions_and_lists(train: str, problem: str) -> None:
    text = f"train:\n  steps: 1\n  groups_per_step: 1\n  {train}\n"
    base = "env: {name: trail}\nmodel: {from: scratch}\n"
    assert problems(text, base=base) == [f"run.yaml:6: {problem}"]


def test_the_model_section_is_told_by_its_tag() -> None:
    base = "env: {name: trail}\ntrain: {steps: 1, groups_per_step: 1}\n"
    assert problems("model: {hidden_size: 3}\n", base=base) == [
        "run.yaml:3: `model.from`: wanted scratch | path | smollm2-135m, got nothing"
    ]
    assert problems("model: {from: path, hidden_size: 3}\n", base=base) == [
        "run.yaml:3: `model.path` is missing; wanted text: "
        "Folder with config.json and weights, or a .gguf file.",
        "run.yaml:3: unknown key `model.hidden_size`; known here: from, path, dtype",
    ]
    assert problems("model: {from: scratch, num_heads: 5, num_kv_heads: 3}\n", base=base) == [
        "run.yaml:3: `model`: num_heads 5 is not a multiple of num_kv_heads 3"
    ]


def test_all_mistakes_of_a_file_are_told_at_once_in_order() -> None:
    found = problems("seed: x\nname: 1\nseed: 2\nnope: 1\n", "eval.tasks=0")
    assert [line.split(": ")[0] for line in found] == [
        "--set eval.tasks=0",
        "run.yaml:4",
        "run.yaml:5",
        "run.yaml:6",
        "run.yaml:7",
    ]


def test_a_missing_section_says_what_it_is_for() -> None:
    assert problems(base="seed: 1\n")[0] == (
        "run.yaml:1: `env` is missing; wanted mapping: Which environment, and its options."
    )
    assert len(problems(base="")) == 3


def test_what_is_no_mapping_or_no_file_is_refused(tmp_path: Path) -> None:
    assert problems(base="- a\n") == ["run.yaml:1: wanted a mapping of sections"]
    assert problems(base="a: [\n")[0].startswith("run.yaml:2: not YAML")
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "missing.yaml")
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_config(tmp_path / "latin.yaml")


def test_set_overrides_values() -> None:
    config = load(
        "rollout: {group_size: 4}\n",
        "rollout.group_size=16",
        "train.optimizer.learning_rate=1e-6",
        "train.advantage={type: rloo}",
        "env.options.answer=no",
        "trackers=[tensorboard]",
        "rollout.max_turns=null",
        "env.options.sum=1=1",
    )
    assert config.rollout.group_size == 16
    assert config.train.optimizer.learning_rate == 1e-6
    assert config.train.advantage.type == "rloo"
    assert config.env.options == {"answer": "no", "sum": "1=1"}
    assert config.trackers == ("tensorboard",)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("rollout.groupsize=4", "unknown key `rollout.groupsize`; did you mean `group_size`?"),
        ("train.stepz=4", "unknown key `train.stepz`; did you mean `steps`?"),
        ("nope.x=4", "unknown key `nope`; known here: name, "),
        ("train.steps=many", "`train.steps`: wanted an integer, got 'many'"),
        ("train.steps", "wanted section.key=value"),
        ("=4", "wanted section.key=value"),
        ("a..b=4", "wanted section.key=value"),
        ("seed.x=4", "`seed` is not a section; set it whole"),
        ("train.loss={type: [}", "not YAML: "),
        ("train.loss={type: ppo_clip, clip_low: 2}", "`train.loss.clip_low`: wanted less than 1"),
    ],
)
def test_a_wrong_override_is_told_as_it_was_typed(override: str, problem: str) -> None:
    (found,) = problems("seed: 0\n", override)
    assert found.startswith(f"--set {override}: {problem}")
