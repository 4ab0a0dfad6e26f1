from __future__ import annotations

from agentrl.config.docs import page
from agentrl.config.keys import all_paths
from agentrl.config.run import RunConfig


def test_the_page_has_a_line_for_every_key() -> None:
    text = page()
    for path in all_paths(RunConfig):
        assert f"| `{path.rsplit('.', 1)[-1]}` |" in text


def test_defaults_and_types_are_as_a_run_file_would_say_them() -> None:
    lines = page().splitlines()
    assert (
        "| `name` | text | `run` | Folder under `runs/`; a number is added when taken. |" in lines
    )
    assert any(line.startswith("| `max_turns` | integer \\| null | `null` |") for line in lines)
    assert any(line.startswith("| `advantage` | section | `{type: grpo}` |") for line in lines)
    assert any(line.startswith("| `steps` | integer > 0 | required |") for line in lines)
    assert "## `train.advantage: type rloo`" in lines
