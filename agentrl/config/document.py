"""YAML as a run file may use it, with the line of every value.

PyYAML resolves plain words by the rules of YAML 1.1, where `no` is false, `1:30` is 90 and `1e-6`
is text. Here a plain word is null, true, false, a whole number, a number, or text: `1e-6` is a
number, and everything else means what it says. Duplicate keys are problems, never "the last one
wins".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from agentrl.types import Json

Path = tuple[str | int, ...]

_INT = re.compile(r"[-+]?[0-9]{1,40}|0x[0-9a-fA-F]+|0o[0-7]+")
FLOAT_WORD = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS = {"null": None, "~": None, "": None, "true": True, "false": False}
_TEXT, _LIST, _MAP = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, and where."""

    where: str
    """`file:line`, or the `--set` it came from."""
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(slots=True)
class Places:
    """Where each value was given: in a line of the file, or by a `--set`."""

    source: str
    by_path: dict[Path, str] = field(default_factory=dict)

    def of(self, path: Path) -> str:
        """The place of `path`, or of the nearest thing around it or in it that was given."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.by_path:
                return self.by_path[path[:length]]
        inside = (place for given, place in self.by_path.items() if given[: len(path)] == path)
        return next(inside, f"{self.source}:1")

    def of_first(self, paths: Sequence[Path]) -> str:
        """The place of the first of them that was given."""
        given = (path for path in paths if path in self.by_path)
        return self.of(next(given, paths[0]))


@dataclass(slots=True)
class Document:
    """The value of a file, the place of each part of it, and what is wrong with it."""

    places: Places
    value: Json = None
    problems: list[Problem] = field(default_factory=list)


class _Loader(yaml.SafeLoader):
    """Marks plain words with a tag of their own; quoted ones are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_PLAIN = "!plain"
_Loader.add_implicit_resolver(_PLAIN, re.compile(r""), None)


def parse(text: str, source: str) -> Document:
    """Read one YAML document; what is wrong with it is in `problems`."""
    document = Document(Places(source))
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        document.problems.append(Problem(where=f"{source}:{line}", message=f"not YAML: {reason}"))
    except yaml.YAMLError as error:
        document.problems.append(Problem(where=source, message=f"not YAML: {error}"))
    else:
        if node is not None:
            document.value = _Reading(document).value(node, (), ())
    return document


class _Reading:
    """One walk over the nodes of a document."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def value(self, node: yaml.Node, path: Path, around: tuple[yaml.Node, ...]) -> Json:
        self._document.places.by_path.setdefault(path, self._place(node))
        if node in around:
            return self._problem(node, "an alias that contains itself")
        inside = (*around, node)
        match node:
            case yaml.MappingNode(tag=tag) if tag == _MAP:
                return self._mapping(node, path, inside)
            case yaml.SequenceNode(tag=tag, value=items) if tag == _LIST:
                return [self.value(item, (*path, i), inside) for i, item in enumerate(items)]
            case yaml.ScalarNode(tag=tag, value=text) if tag == _PLAIN:
                return plain_scalar(text)
            case yaml.ScalarNode(tag=tag, value=text) if tag == _TEXT:
                return text
        return self._problem(node, f"the tag {node.tag} has no meaning in a run file")

    def _mapping(
        self, node: yaml.MappingNode, path: Path, around: tuple[yaml.Node, ...]
    ) -> dict[str, Json]:
        result: dict[str, Json] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, "a key must be a word")
                continue
            key = key_node.value
            name = ".".join(map(str, (*path, key)))
            if key in result:
                self._problem(
                    key_node, f"`{name}` stands here and in line {first_lines[key]}; keep one"
                )
                continue
            first_lines[key] = key_node.start_mark.line + 1
            self._document.places.by_path[*path, key] = self._place(key_node)
            result[key] = self.value(value_node, (*path, key), around)
        return result

    def _problem(self, node: yaml.Node, message: str) -> None:
        self._document.problems.append(Problem(where=self._place(node), message=message))

    def _place(self, node: yaml.Node) -> str:
        return f"{self._document.places.source}:{node.start_mark.line + 1}"


def plain_scalar(text: str) -> Json:
    """What a plain, unquoted word means."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if FLOAT_WORD.fullmatch(text):
        return float(text)
    return text
