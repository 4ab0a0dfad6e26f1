"""What pydantic found wrong, in words for the person who wrote the file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentrl.config.checks import Conflicts
from agentrl.config.document import Path, Places, Problem
from agentrl.config.keys import all_paths, key_at, keys_of, section_at
from agentrl.config.sections import Section
from agentrl.types import Json

_WANTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text (put it in quotes)",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_long": "text of at most {max_length} characters",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "one of {expected}",
}


def explain(
    error: ValidationError, root: type[Section], data: Json, places: Places
) -> list[Problem]:
    """One problem an error, with the place in the file or the `--set` it comes from."""
    problems = []
    for details in error.errors(include_url=False):
        cause = details.get("ctx", {}).get("error")
        path = _path_in(data, details["loc"], keep_last=details["type"] == "missing")
        if isinstance(cause, Conflicts):
            problems += [
                Problem(where=places.of_first(conflict.paths), message=conflict.message)
                for conflict in cause.conflicts
            ]
        else:
            problems.append(
                Problem(where=places.of(path), message=_message(details, root, data, path))
            )
    return problems


def _path_in(data: Json, loc: tuple[str | int, ...], *, keep_last: bool) -> Path:
    """pydantic's location without the names of union members, which no file holds."""
    path: list[str | int] = []
    for position, part in enumerate(loc):
        is_there = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if is_there:
            data = data[part]
        elif not (keep_last and position == len(loc) - 1):
            continue
        path.append(part)
    return tuple(path)


def _message(details: ErrorDetails, root: type[Section], data: Json, path: Path) -> str:
    name = ".".join(map(str, path))
    key = key_at(root, data, path)
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return f"unknown key `{name}`{_nearest_key(root, data, path)}"
        case "missing" if key is not None:
            meaning = f": {key.meaning}" if key.meaning else ""
            return f"`{name}` is missing; wanted {key.type_text}{meaning}"
        case "union_tag_not_found" | "union_tag_invalid" if key is not None:
            choices = [tag.value for tag in key.tags]
            wanted = f"`{name}.{key.tags[0].name}`: wanted {' | '.join(choices)}"
            if "tag" not in context:
                return f"{wanted}, got nothing"
            return f"{wanted}, got {context['tag']!r}{_nearest(context['tag'], choices)}"
        case "literal_error" if key is not None:
            got = details["input"]
            return f"`{name}`: wanted {key.type_text}, got {_shown(got)}{_nearest(str(got), key.choices)}"
        case "missing":
            return f"`{name}` is missing"
        case kind if kind in _WANTED:
            wanted = _WANTED[kind].format(**{k: _number(v) for k, v in context.items()})
            return f"`{name}`: wanted {wanted}, got {_shown(details['input'])}"
        case _:
            return f"`{name}`: {details['msg'].removeprefix('Value error, ')}"


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    match value:
        case None:
            return "nothing"
        case bool():
            return text.lower()
        case dict() | list():
            return f"a {'mapping' if isinstance(value, dict) else 'list'}: {text[:60]}"
        case _:
            return text[:80]


def _nearest_key(root: type[Section], data: Json, path: Path) -> str:
    """The key that was meant: a near name here, or the same name in another section."""
    section = section_at(root, data, path[:-1])
    if section is None:
        return ""
    here = list(keys_of(section))
    unknown = str(path[-1]).replace("-", "_").lower()
    near_here = _nearest(unknown, here)
    if near_here:
        return near_here
    itself = ".".join(map(str, path))
    everywhere = list(all_paths(root))
    elsewhere = [known for known in everywhere if known.rsplit(".", 1)[-1] == unknown]
    # a key of another choice for this very section is not to be looked for elsewhere
    if elsewhere and itself not in everywhere:
        return f"; did you mean {_any_of(dict.fromkeys(elsewhere))}?"
    return f"; known here: {', '.join(here)}"


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def _any_of(names: Iterable[str]) -> str:
    return " or ".join(f"`{name}`" for name in names)
