from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agentrl.config.dump import MASK, dump_config, masked
from agentrl.config.load import load_config, parse_config
from agentrl.config.run import RunConfig


def test_the_quickstart_comes_back_equal() -> None:
    config = load_config(Path("configs/quickstart.yaml"))
    assert parse_config(dump_config(config), source="dump") == config


def test_defaults_are_written_out() -> None:
    dumped = yaml.safe_load(dump_config(load_config(Path("configs/quickstart.yaml"))))
    assert dumped["outcomes"]["infra_error"] == "retry"
    assert set(dumped) == set(RunConfig.model_fields)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("api_key", "abc"),
        ("OPENAI_API_KEY", "abc"),
        ("token", "abc"),
        ("db-password", "abc"),
        ("anything", "sk-proj-abcdefghijklmnop"),
        ("anything", "hf_abcdefghijklmnopqrst"),
        ("anything", "AKIAABCDEFGHIJKLMNOP"),
        ("anything", "-----BEGIN RSA PRIVATE KEY-----"),
        ("note", "use ghp_abcdefghijklmnopqrst here"),
    ],
)
def test_credentials_are_never_written(key: str, value: str) -> None:
    assert masked({"deep": [{key: value}]}) == {"deep": [{key: MASK}]}


def test_a_password_in_an_address_is_masked_alone() -> None:
    assert masked({"url": "https://me:secret@host/x"}) == {"url": f"https://me:{MASK}@host/x"}


@pytest.mark.parametrize(
    "harmless",
    [
        {"max_turn_tokens": 16, "token_mean": "token_mean", "monkey": "x", "api_key": ""},
        {"url": "https://host:8000/a@b", "type": "ppo_clip", "tokenizer": "bytes"},
        {"task": "task-with-a-long-name-in-it", "path": "disk-image-for-the-sandbox"},
    ],
)
def test_what_is_no_credential_stays(harmless: dict[str, object]) -> None:
    assert masked(harmless) == harmless
