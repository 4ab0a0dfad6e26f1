from __future__ import annotations

from agentrl.config.keys import all_paths, keys_of, section_at
from agentrl.config.run import RunConfig
from agentrl.config.sections import RlooAdvantage, Section


def sections(root: type[Section]) -> list[type[Section]]:
    below = [inner for key in keys_of(root).values() for inner in key.sections]
    return [root, *(found for section in below for found in sections(section))]


def test_every_key_says_what_it_means() -> None:
    silent = [
        f"{section.__name__}.{key.name}"
        for section in sections(RunConfig)
        for key in keys_of(section).values()
        if not key.meaning
    ]
    assert not silent


def test_keys_go_by_their_names_in_yaml() -> None:
    paths = list(all_paths(RunConfig))
    assert "model.from" in paths
    assert "train.optimizer.learning_rate" in paths
    assert not [path for path in paths if "from_" in path]


def test_a_union_is_told_apart_by_its_tag() -> None:
    data = {"train": {"advantage": {"type": "rloo"}}}
    assert section_at(RunConfig, data, ("train", "advantage")) is RlooAdvantage
    assert section_at(RunConfig, {"train": {"advantage": {}}}, ("train", "advantage")) is None
    assert section_at(RunConfig, {}, ("seed",)) is None


def test_types_read_like_yaml() -> None:
    keys = {f"{s.__name__}.{k.name}": k for s in sections(RunConfig) for k in keys_of(s).values()}
    assert keys["OptimizerSection.betas"].type_text == "[number, number]"
    assert keys["RunConfig.trackers"].type_text == "list of tensorboard | wandb"
    assert keys["RolloutSection.max_turns"].type_text == "integer | null"
    assert keys["RolloutSection.top_p"].bounds == "> 0, <= 1"
    assert keys["EnvSection.options"].type_text == "mapping"
