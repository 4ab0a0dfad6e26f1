"""What the README tells a new user to type has to work as it stands there."""

from __future__ import annotations

import textwrap
from itertools import islice
from pathlib import Path

import pytest

from agentrl.chat.plain import PlainFormat
from agentrl.config.load import load_config
from agentrl.models.tokenizer import byte_tokenizer
from agentrl.registry import EnvRef
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.demos import demo_rows, demo_tasks

README = Path(__file__).parents[2] / "README.md"


def block(first_line: str) -> str:
    """The indented block that begins with a line, up to the next text or another such line."""
    lines = README.read_text().splitlines()
    start = lines.index(f"    {first_line}")
    found = []
    for line in lines[start + 1 :]:
        is_text = line and not line.startswith("    ")
        if is_text or line.startswith(("    # mine", "    agentrl ")):
            break
        found.append(line)
    return textwrap.dedent("\n".join(found)) + "\n"


async def test_its_environment_can_be_warmed_up_on_all_of_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(block("# mine.py"))
    (tmp_path / "mine.yaml").write_text(block("# mine.yaml"))
    config = load_config(tmp_path / "mine.yaml")
    env = EnvRef(name=config.env.name, options=config.env.options).load()
    chat = PlainFormat(byte_tokenizer().backend_tokenizer, env.definition().schemas)
    num_tasks = sum(1 for _ in env.tasks("train"))
    tasks = list(islice(demo_tasks(env), num_tasks))
    rows = await demo_rows(env, chat, RolloutLimits.of(config.rollout), tasks)
    assert len(rows) == num_tasks > config.train.groups_per_step
    assert max(len(row.ids) for row in rows) <= config.warmup.row_tokens
