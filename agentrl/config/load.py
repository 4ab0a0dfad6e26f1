"""From a YAML file and `--set a.b=c` to a checked `RunConfig`, or to everything that is wrong.

All problems of a file are found at once, each with its file and line, in words that say what was
wanted, what was there and what to write instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from agentrl.config import document
from agentrl.config.document import Document, Places, Problem
from agentrl.config.problems import explain
from agentrl.config.run import RunConfig
from agentrl.types import Json


class ConfigError(ValueError):
    """A run file that cannot be used; one line a problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run file. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError([Problem(where=str(path), message=f"cannot be read: {reason}")]) from None
    return parse_config(text, source=str(path), overrides=overrides)


def parse_config(text: str, *, source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The same from text; `source` names it in messages."""
    file = document.parse(text, source)
    value = {} if file.value is None else file.value
    if not isinstance(value, dict):
        raise ConfigError([Problem(where=f"{source}:1", message="wanted a mapping of sections")])
    if file.value is None and file.problems:
        raise ConfigError(file.problems)
    problems = list(file.problems)
    for override in overrides:
        problems += _override(value, override, file.places)
    config = None
    try:
        # JSON in strict mode: a list may be a tuple, but "8" is no integer and 1 is not true
        config = RunConfig.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        problems += explain(error, RunConfig, value, file.places)
    if config is None or problems:
        raise ConfigError(sorted(problems, key=lambda problem: _line(problem.where)))
    return config


def _override(value: dict[str, Json], override: str, places: Places) -> list[Problem]:
    """Put `a.b=c` into `value` and note where it came from."""
    name, equals, text = override.partition("=")
    source = f"--set {override}"
    path = tuple(name.strip().split("."))
    if not equals or not all(path):
        return [Problem(where=source, message="wanted section.key=value")]
    given: Document = document.parse(text, source)
    if given.problems:
        return [Problem(where=source, message=problem.message) for problem in given.problems]
    for position, part in enumerate(path[:-1], start=1):
        inner = value.get(part)
        if inner is None:
            inner = value[part] = {}
        if not isinstance(inner, dict):
            whole = ".".join(path[:position])
            return [Problem(where=source, message=f"`{whole}` is not a section; set it whole")]
        value = inner
    value[path[-1]] = given.value
    for known in [known for known in places.by_path if known[: len(path)] == path]:
        del places.by_path[known]
    places.by_path[path] = source
    return []


def _line(where: str) -> int:
    line = where.rpartition(":")[2]
    return int(line) if line.isdecimal() else 0
