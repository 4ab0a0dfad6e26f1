"""Writes `docs/config.md`: one page of every key with its type, default and meaning.

python -m agentrl.config.docs > docs/config.md
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from agentrl.config.keys import Key, keys_of, tag_of
from agentrl.config.run import RunConfig
from agentrl.config.sections import Section

_HEAD = """# Run files

Every key that a run file may hold. This page is made from the models in `agentrl/config/` by
`python -m agentrl.config.docs > docs/config.md`.

A run file is YAML, read strictly: unknown and duplicate keys are refused, and a value must have the
type it says here. A plain word is a number only when all of it is one (`1e-6` is; `1:30` and `no`
are text). `--set section.key=value` on the command line overrides a key; the value is YAML too.
Names say their units: `_s` seconds, `_tokens` tokens, `steps` optimizer steps.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, "\n".join(_table(RunConfig)), *_sections(RunConfig, "")]
    return "\n".join(parts).rstrip() + "\n"


def _sections(parent: type[Section], prefix: str) -> Iterator[str]:
    for key in keys_of(parent).values():
        path = f"{prefix}{key.name}"
        for section in (*key.sections, *key.item_sections):
            tag = tag_of(section)
            is_choice = tag is not None and tag.name in ("type", "from")
            title = f"{path}: {tag.name} {tag.value}" if tag and is_choice else path
            title += "[]" if key.item_sections else ""
            yield f"\n## `{title}`\n"
            yield f"{inspect.getdoc(section)}\n" if vars(section).get("__doc__") else ""
            yield "\n".join(_table(section))
            yield from _sections(section, f"{path}.")


def _table(section: type[Section]) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for key in keys_of(section).values():
        cells = (f"`{key.name}`", _type(key), _default(key), key.meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type(key: Key) -> str:
    return "section" if key.sections else f"{key.type_text} {key.bounds}".strip()


def _default(key: Key) -> str:
    if key.is_required:
        return "required"
    return f"`{_yaml(key.default)}`"


def _yaml(value: Any) -> str:
    match value:
        case BaseModel():
            tag = tag_of(type(value)) if isinstance(value, Section) else None
            return f"{{{tag.name}: {tag.value}}}" if tag else "{}"
        case None | bool():
            return str(value).lower().replace("none", "null")
        case tuple() | list():
            return f"[{', '.join(map(_yaml, value))}]"
        case _:
            return str(value)


if __name__ == "__main__":
    sys.stdout.write(page())
