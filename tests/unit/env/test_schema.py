"""The schema of a tool and the check of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest

from agentrl.schema import ArgumentError, tool_schema


def look(
    self: Any,
    path: Annotated[str, "Where to look"],
    copy: int = 3,
    mode: Literal["r", "w"] = "r",
) -> str:
    """Look at a file.

    It may be large.
    """
    return ""


def two(self: Any, old: str, new: str) -> str:
    return ""


def number(self: Any, n: int) -> str:
    return ""


SCHEMA = tool_schema(look, "E")


def test_the_schema_is_the_signature() -> None:
    assert SCHEMA.name == "look"
    assert SCHEMA.description == "Look at a file.\n\nIt may be large."
    assert SCHEMA.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["path"],
        "properties": {
            "path": {"type": "string", "description": "Where to look"},
            "copy": {"type": "integer", "default": 3},
            "mode": {"type": "string", "default": "r", "enum": ["r", "w"]},
        },
    }


def test_arguments_left_out_are_left_to_the_function() -> None:
    assert SCHEMA.validate({"path": "a"}) == {"path": "a"}
    assert SCHEMA.validate({"path": "a", "copy": 4}) == {"path": "a", "copy": 4}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "path: Field required"),
        ({"path": 3}, "path: Input should be a valid string"),
        ({"path": "a", "copy": "x"}, "copy: Input should be a valid integer"),
        ({"path": "a", "mode": "z"}, "mode: Input should be 'r' or 'w'"),
        ({"path": "a", "dept": 1}, "dept: unknown argument"),
        ({"p0": "a"}, "path: Field required; p0: unknown argument"),
    ],
)
def test_the_model_is_told_what_is_wrong(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError, match="invalid arguments for look: ") as error:
        SCHEMA.validate(arguments)
    assert told in str(error.value)


def test_only_a_single_required_string_may_be_bare() -> None:
    assert SCHEMA.bare_parameter == "path"
    assert tool_schema(two, "E").bare_parameter is None
    assert tool_schema(number, "E").bare_parameter is None


NOTHING = object()


def shapeless(self: Any, image: Callable[[], int]) -> str:
    return ""


def unshowable(self: Any, n: Any = NOTHING) -> str:
    return ""


def unreadable(self: Any, n: "list[") -> str:  # noqa: F722  # the mistake under test
    return ""


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (
            shapeless,
            r"tool E.shapeless: parameter 'image' is .*no JSON value can be.*wanted a type",
        ),
        (unshowable, r"tool E.unshowable: the default of parameter 'n' is <object.*wanted a text"),
        (unreadable, r"tool E.unreadable: an annotation cannot be resolved"),
    ],
)
def test_a_signature_that_no_call_can_fit_is_refused(
    function: Callable[..., Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        tool_schema(function, "E")
