"""Walks the configuration models: every key with its type, default and meaning.

The error messages (which names exist here?), `--set` and the documentation page all ask this one
place, so they cannot disagree with the models.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from agentrl.config.document import Path
from agentrl.config.sections import Section
from agentrl.types import Json


class Tag(NamedTuple):
    """The key and value by which one section of a tagged union is chosen: `type: grpo`."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a section."""

    name: str
    """As it is written in YAML."""
    field: FieldInfo
    sections: tuple[type[Section], ...]
    """The sections that may stand here: none for a plain value, several for a tagged union."""

    @property
    def item_sections(self) -> tuple[type[Section], ...]:
        """Those that each item of a list may be."""
        annotation = self.field.annotation
        is_list = get_origin(annotation) is tuple and get_args(annotation)[-1] is Ellipsis
        return tuple(_sections_in(get_args(annotation)[0])) if is_list else ()

    @property
    def is_required(self) -> bool:
        return self.field.is_required()

    @property
    def default(self) -> Any:
        """Only of keys that are not required."""
        return self.field.get_default(call_default_factory=True)

    @property
    def type_text(self) -> str:
        return _type_text(self.field.annotation)

    @property
    def bounds(self) -> str:
        """Such as `> 0`; empty when any value of the type will do."""
        signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
        return ", ".join(
            f"{sign} {getattr(limit, name)}"
            for limit in self.field.metadata
            for name, sign in signs.items()
            if hasattr(limit, name)
        )

    @property
    def meaning(self) -> str:
        if self.field.description:
            return self.field.description
        return _first_line(self.sections[0]) if len(self.sections) == 1 else ""

    @property
    def choices(self) -> list[str]:
        """The words that may stand here, when the type is a closed choice."""
        annotation = self.field.annotation
        return list(map(str, get_args(annotation))) if get_origin(annotation) is Literal else []

    @property
    def tags(self) -> list[Tag]:
        """What chooses among `sections`."""
        return [tag for tag in map(tag_of, self.sections) if tag]


def keys_of(section: type[Section]) -> dict[str, Key]:
    """The keys of one section by name, in the order of the model."""
    found = (
        Key(
            name=field.alias or attribute,
            field=field,
            sections=tuple(_sections_in(field.annotation)),
        )
        for attribute, field in section.model_fields.items()
    )
    return {key.name: key for key in found}


def tag_of(section: type[Section]) -> Tag | None:
    for key in keys_of(section).values():
        if key.is_required and len(key.choices) == 1:
            return Tag(key.name, key.choices[0])
    return None


def section_at(root: type[Section], data: Json, path: Path) -> type[Section] | None:
    """The section that stands at `path` of `data`; None when it is a plain value or undecided."""
    section: type[Section] | None = root
    for name in path:
        if section is None or not isinstance(data, dict):
            return None
        key = keys_of(section).get(str(name))
        data = data.get(name)
        section = _chosen(key.sections, data) if key else None
    return section


def key_at(root: type[Section], data: Json, path: Path) -> Key | None:
    section = section_at(root, data, path[:-1]) if path else None
    return keys_of(section).get(str(path[-1])) if section else None


def all_paths(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Every key below a section, dotted."""
    for key in keys_of(section).values():
        path = f"{prefix}{key.name}"
        yield path
        for inner in key.sections:
            yield from all_paths(inner, f"{path}.")


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, typing.Annotated):
        for part in get_args(annotation):
            yield from _sections_in(part)


def _chosen(sections: tuple[type[Section], ...], data: Json) -> type[Section] | None:
    if len(sections) == 1:
        return sections[0]
    for section in sections:
        tag = tag_of(section)
        if tag and isinstance(data, dict) and data.get(tag.name) == tag.value:
            return section
    return None


_WORDS = {int: "integer", float: "number", str: "text", bool: "true | false", type(None): "null"}


def _type_text(annotation: Any) -> str:
    """A type in the words of a YAML file."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin is typing.Annotated:
        return _type_text(arguments[0])
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(_type_text, arguments)))
    if origin is tuple:
        is_open = arguments[-1] is Ellipsis
        if is_open:
            return f"list of {_type_text(arguments[0])}"
        return f"[{', '.join(map(_type_text, arguments))}]"
    return _WORDS.get(annotation, "mapping")


def _first_line(section: type[Section]) -> str:
    own = vars(section).get("__doc__")
    return own.strip().splitlines()[0] if own else ""
