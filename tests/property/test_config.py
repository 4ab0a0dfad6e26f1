"""A configuration that was dumped loads equal, whatever an environment's options hold."""

from __future__ import annotations

import string

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config.document import parse
from agentrl.config.dump import MASK, dump_config
from agentrl.config.load import parse_config
from agentrl.config.run import RunConfig

words = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.text(string.digits + "+-.:eExo_ ", max_size=8),
    st.sampled_from(["no", "on", "null", "~", "1e-6", "1:30", "0o17", "<<", "=", "2024-01-01"]),
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@given(
    options=st.dictionaries(words, values, max_size=4),
    name=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", fullmatch=True),
    learning_rate=st.floats(1e-9, 1.0),
    group_size=st.integers(2, 64),
    advantage=st.sampled_from(
        [{"type": "grpo", "epsilon": 1e-6}, {"type": "rloo", "zero_variance": "keep"}]
    ),
    trackers=st.lists(st.sampled_from(["tensorboard", "wandb"]), max_size=2),
)
@settings(deadline=None)
def test_dump_and_load(
    options: dict[str, object],
    name: str,
    learning_rate: float,
    group_size: int,
    advantage: dict[str, object],
    trackers: list[str],
) -> None:
    config = RunConfig.model_validate(
        {
            "name": name,
            "env": {"name": "trail", "options": options},
            "model": {"from": "scratch"},
            "rollout": {"group_size": group_size},
            "train": {
                "steps": 1,
                "groups_per_step": 1,
                "advantage": advantage,
                "optimizer": {"learning_rate": learning_rate},
            },
            "trackers": trackers,
        }
    )
    dumped = dump_config(config)
    if MASK not in dumped:
        assert parse_config(dumped, source="dump") == config


@given(st.text(max_size=60))
@settings(deadline=None)
def test_no_text_breaks_the_reader(text: str) -> None:
    document = parse(text, "f.yaml")
    if document.value is None and not document.problems:
        assert yaml.safe_load(text) is None
