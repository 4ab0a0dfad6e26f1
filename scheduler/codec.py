"""Events and decisions as plain dicts and as JSON lines, and back; the only place that knows how.

`{"type": "TurnReady", "t": 1.5, ...}` with every field, in the order of declaration, so that equal
values have equal bytes and a replay can compare bytes. Unknown types and fields are errors: a log
of another version must not be half understood.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from scheduler.decisions import Decision
from scheduler.events import Event

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_ESCAPER = json.JSONEncoder(separators=(",", ":"))
_AS_IS = frozenset({str, int, float, bool, type(None)})
_CLASSES: dict[str, type] = {cls.__name__: cls for cls in (*get_args(Event), *get_args(Decision))}


def to_dict(value: Event | Decision) -> dict[str, Any]:
    """All fields of a value and its `type`, ready for JSON."""
    return {"type": type(value).__name__, **_plain_fields(value)}


def from_dict(data: Mapping[str, Any]) -> Event | Decision:
    """The inverse of `to_dict`."""
    cls = _CLASSES.get(data["type"])
    if cls is None:
        raise ValueError(f"unknown event or decision {data['type']!r}: written by another version?")
    value: Event | Decision = _decode(cls, {k: v for k, v in data.items() if k != "type"})
    return value


def to_json(value: Event | Decision) -> bytes:
    """One line without its end; equal values give equal bytes."""
    return encode_line(to_dict(value))


def encode_line(data: Any) -> bytes:
    """Plain data as one line without its end."""
    try:
        return _ENCODER.encode(data).encode()
    except UnicodeEncodeError:  # a lone surrogate, in the name of a tool or a file
        return _ESCAPER.encode(data).encode()


def _plain_fields(value: Any) -> dict[str, Any]:
    return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}


def _plain(value: Any) -> Any:
    if type(value) in _AS_IS:
        return value
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return _plain_fields(value) if is_dataclass(value) else value


def _decode(cls: type, data: Mapping[str, Any]) -> Any:
    decoders = _decoders(cls)
    unknown = data.keys() - decoders.keys()
    if unknown:
        raise ValueError(f"{cls.__name__} has no field {sorted(unknown)}: another version's log?")
    return cls(**{name: decoders[name](value) for name, value in data.items()})


@cache
def _decoders(cls: type) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(cls)
    return {field.name: _decoder(hints[field.name]) for field in fields(cls)}


def _decoder(hint: Any) -> Callable[[Any], Any]:
    if isinstance(hint, types.UnionType):
        inner = next(arg for arg in get_args(hint) if arg is not type(None))
        decode = _decoder(inner)
        return lambda value: None if value is None else decode(value)
    if get_origin(hint) is tuple:
        item = _decoder(get_args(hint)[0])
        return lambda value: tuple(item(each) for each in value)
    if get_origin(hint) is frozenset:
        return frozenset
    if is_dataclass(hint):
        assert isinstance(hint, type)
        nested = hint
        return lambda value: _decode(nested, value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint
    return lambda value: value
