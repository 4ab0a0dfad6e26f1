"""The JSON schema of a tool, and the check of its arguments, both from its Python signature.

One pydantic model made from the signature serves both, so what the model is told and what it is
held to cannot differ. The text of an `ArgumentError` is written for the language model: it is
sent back as the result of the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from agentrl.types import Json

UNRESOLVED = (NameError, AttributeError, SyntaxError, TypeError)
"""What evaluating an annotation written as text can raise."""


class ArgumentError(Exception):
    """The arguments of a call do not fit the tool; the text tells the model how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """What a language model has to know of a tool, and the check of what it answers."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    """JSON schema of the arguments object."""
    bare_parameter: str | None
    """The one parameter that must be given, if it is a string: a chat format may write a call's
    argument without JSON around it."""
    arguments: type[BaseModel]

    def validate(self, arguments: Mapping[str, Json]) -> dict[str, Any]:
        """Keyword arguments for the function; parameters left out keep their defaults."""
        try:
            valid = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            problems = "; ".join(_problem(problem) for problem in error.errors())
            raise ArgumentError(f"invalid arguments for {self.name}: {problems}") from error
        aliases = {key: str(info.alias) for key, info in self.arguments.model_fields.items()}
        return {aliases[key]: getattr(valid, key) for key in valid.model_fields_set}


def tool_schema(function: Callable[..., Any], owner: str) -> ToolSchema:
    """The schema of a method; `owner` is the class named in errors. Raises ValueError."""
    where = f"tool {owner}.{function.__name__}"
    parameters = list(inspect.signature(function).parameters.values())[1:]
    try:
        hints = get_type_hints(function, include_extras=True)
    except UNRESOLVED as error:
        raise ValueError(f"{where}: an annotation cannot be resolved: {error}") from error
    fields: dict[str, Any] = {}
    for position, parameter in enumerate(parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"{where}: *{parameter.name} has no schema; name every parameter")
        if parameter.name not in hints:
            raise ValueError(
                f"{where}: parameter {parameter.name!r} has no type annotation; the schema and "
                f"the check of its arguments are made from it, as in `{parameter.name}: str`"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        # the alias keeps parameter names such as `copy` apart from attributes of BaseModel
        field = Field(default, alias=parameter.name, description=_doc(hints[parameter.name]))
        _refuse_unwritable(hints[parameter.name], parameter, where)
        fields[f"p{position}"] = (hints[parameter.name], field)
    arguments = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    schema = arguments.model_json_schema()
    schema.pop("title")
    for declared in schema["properties"].values():
        declared.pop("title", None)
    return ToolSchema(
        name=function.__name__,
        description=inspect.getdoc(function) or "",
        parameters=schema,
        bare_parameter=_bare_parameter(schema),
        arguments=arguments,
    )


def _refuse_unwritable(hint: Any, parameter: inspect.Parameter, where: str) -> None:
    """A model writes JSON, and a default is shown to it as JSON."""
    try:
        TypeAdapter(hint).json_schema()
    except PydanticUserError as error:
        raise ValueError(
            f"{where}: parameter {parameter.name!r} is {hint!r}, which no JSON value can be; "
            "wanted a type such as str, int, list[int], Literal or a dataclass"
        ) from error
    if parameter.default is parameter.empty:
        return
    try:
        to_jsonable_python(parameter.default)
    except PydanticSerializationError as error:
        raise ValueError(
            f"{where}: the default of parameter {parameter.name!r} is {parameter.default!r}, "
            "which cannot be shown to a model as JSON; wanted a text, number, list or dict"
        ) from error


def _doc(hint: Any) -> str | None:
    """The text in `Annotated[int, "text"]`."""
    if get_origin(hint) is not Annotated:
        return None
    return next((extra for extra in get_args(hint)[1:] if isinstance(extra, str)), None)


def _bare_parameter(schema: Mapping[str, Json]) -> str | None:
    required = schema.get("required", [])
    if len(required) != 1 or schema["properties"][required[0]].get("type") != "string":
        return None
    return str(required[0])


def _problem(problem: Any) -> str:
    """One entry of pydantic's error list, as in `timeout: Input should be a valid integer`."""
    place = ".".join(str(part) for part in problem["loc"])
    message = "unknown argument" if problem["type"] == "extra_forbidden" else problem["msg"]
    return f"{place}: {message}"
