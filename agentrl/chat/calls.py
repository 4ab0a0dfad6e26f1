"""A tool call as text: `NAME ARGUMENTS`, where the arguments are a JSON object.

For a tool with one required string parameter the arguments may be that string itself, without
JSON around it: `sh cat notes.txt`. Reading is total: text that makes no sense becomes a call
whose `error` says why, in words meant for the language model.

Invariant: `read_call(write_call(call))` is the same call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from agentrl.schema import ToolSchema
from agentrl.types import Json, ToolCall

MAX_DEPTH = 64
"""Of objects and lists in each other: more than that is no call that anybody meant, and far less
than what sends one of the many readers and writers of a call beyond Python's recursion limit."""


def read_call(text: str, tools: Mapping[str, ToolSchema], call_id: str) -> ToolCall:
    name, _, argument_text = text.partition(" ")
    tool = tools.get(name)
    if tool is None or tool.bare_parameter is None or _is_object_for(tool, argument_text):
        arguments = read_arguments(argument_text)
    else:
        arguments = {tool.bare_parameter: argument_text} if argument_text else {}
    if isinstance(arguments, str):
        return ToolCall(name, id=call_id, error=arguments)
    return ToolCall(name, arguments, call_id)


def write_call(call: ToolCall, tools: Mapping[str, ToolSchema]) -> str:
    """Raises ValueError for a call that no text can express."""
    if not call.name or " " in call.name:
        raise ValueError(f"a tool's name must be one word, got {call.name!r}")
    tool = tools.get(call.name)
    if tool is not None and list(call.arguments) == [tool.bare_parameter]:
        (argument,) = call.arguments.values()
        if isinstance(argument, str) and argument and not _is_object_for(tool, argument):
            return f"{call.name} {argument}"
    if not call.arguments:
        return call.name
    return f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}"


def read_arguments(text: str) -> dict[str, Json] | str:
    """The arguments object, or what is wrong with it. No text at all is an empty object."""
    if not text.strip():
        return {}
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"the arguments are not valid JSON: {error}"
    if not isinstance(arguments, dict):
        return f"the arguments must be a JSON object, got {text.strip()[:40]}"
    if _is_deeper(arguments, MAX_DEPTH):
        return f"the arguments are nested deeper than {MAX_DEPTH} levels"
    return _half_character(arguments) or arguments


def _half_character(arguments: dict[str, Json]) -> str:
    """A complaint about the first one: no file, command or reader of text could take it."""
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        return f"the arguments hold half a character: {half!r}; write characters as they are"
    return ""


def _is_deeper(value: Json, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [
            item
            for outer in layer
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(item, dict | list) for item in layer)


def _is_object_for(tool: ToolSchema, text: str) -> bool:
    """Whether text for a tool that takes bare text is an object of its parameters all the same."""
    if not text.startswith("{"):
        return False
    arguments = read_arguments(text)
    return isinstance(arguments, dict) and arguments.keys() <= tool.parameters["properties"].keys()
