"""The ways `code_repair` breaks a module: one small edit of its text, found in its syntax tree.

Every kind is a rule over syntax, not a list of prepared mistakes, so it breaks any code it is
given. Whether an edit changes what the code does is not decided here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple


class BugKind(StrEnum):
    OFF_BY_ONE = "off_by_one"
    WRONG_OPERATOR = "wrong_operator"
    BOUNDARY = "boundary"
    """`<` for `<=` and the like."""
    NEGATED = "negated"
    SWAPPED_ARGUMENTS = "swapped_arguments"
    MISSING_BASE_CASE = "missing_base_case"
    WRONG_DEFAULT = "wrong_default"
    MUTATED_ARGUMENT = "mutated_argument"
    """Works on the caller's own list or dict instead of a copy."""


class Edit(NamedTuple):
    start: int
    end: int
    text: str


class Code:
    """Source text, and where the nodes of its tree stand in it. ASCII only."""

    def __init__(self, text: str) -> None:
        assert text.isascii(), "columns of syntax trees count bytes"
        self.text = text
        self.tree = ast.parse(text)
        self._line_starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))]

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._line_starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr) -> str:
        return self.text[self.start(node) : self.end(node)]

    def replace(self, node: ast.expr, text: str) -> Edit:
        return Edit(self.start(node), self.end(node), text)

    def replace_between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Edit:
        """An operator is no node; it is what stands between its operands."""
        start, end = self.end(left), self.start(right)
        return Edit(start, end, self.text[start:end].replace(old, new))

    def without_lines(self, node: ast.stmt) -> Edit:
        assert node.end_lineno is not None
        return Edit(self._line_starts[node.lineno - 1], self._line_starts[node.end_lineno], "")


def broken_versions(source: str, kind: BugKind) -> list[str]:
    """The source with one bug of this kind, once for each place that has room for it."""
    code = Code(source)
    edits = [edit for node in ast.walk(code.tree) for edit in _EDITS[kind](node, code)]
    return [source[: edit.start] + edit.text + source[edit.end :] for edit in edits]


_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
_BOUNDARIES: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
_OPPOSITES: dict[type[ast.AST], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}


def _off_by_one(node: ast.AST, code: Code) -> Iterator[Edit]:
    match node:
        case ast.Call(func=ast.Name(id="range"), args=[*_, stop]):
            yield code.replace(stop, f"{code.of(stop)} - 1")
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=ast.Constant(value=1 | 2)):
            yield code.replace(node, code.of(left))
        case ast.BinOp(op=ast.Add(), left=ast.Constant(value=1 | 2), right=right):
            yield code.replace(node, code.of(right))
        case ast.Slice(upper=ast.expr() as upper):
            yield code.replace(upper, f"{code.of(upper)} - 1")


def _wrong_operator(node: ast.AST, code: Code) -> Iterator[Edit]:
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            yield code.replace_between(left, right, *_OPERATORS[type(op)])
        case ast.BoolOp(op=op, values=[left, right, *_]):
            yield code.replace_between(left, right, *_OPERATORS[type(op)])
        case ast.Call(func=ast.Name(id="min" | "max" as name) as function):
            yield code.replace(function, "max" if name == "min" else "min")


def _boundary(node: ast.AST, code: Code) -> Iterator[Edit]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BOUNDARIES:
            yield code.replace_between(left, right, *_BOUNDARIES[type(op)])


def _negated(node: ast.AST, code: Code) -> Iterator[Edit]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPPOSITES:
            yield code.replace_between(left, right, *_OPPOSITES[type(op)])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield code.replace(node, code.of(operand))
        case ast.If(test=ast.Name() | ast.Call() as test):
            yield code.replace(test, f"not {code.of(test)}")


def _swapped_arguments(node: ast.AST, code: Code) -> Iterator[Edit]:
    match node:
        case ast.Call(func=ast.Name(), args=[first, second, *_]):
            swapped = f"{code.of(second)}, {code.of(first)}"
            yield Edit(code.start(first), code.end(second), swapped)


def _missing_base_case(node: ast.AST, code: Code) -> Iterator[Edit]:
    match node:
        case ast.FunctionDef(body=body) if _calls_itself(node):
            for statement in body:
                match statement:
                    case ast.If(body=[ast.Return()], orelse=[]):
                        yield code.without_lines(statement)


def _calls_itself(function: ast.FunctionDef) -> bool:
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return function.name in names


def _wrong_default(node: ast.AST, code: Code) -> Iterator[Edit]:
    match node:
        case ast.FunctionDef(args=ast.arguments(defaults=defaults)):
            for default in defaults:
                match default:
                    case ast.Constant(value=int() as number):
                        yield code.replace(default, str(number + 1))


def _mutated_argument(node: ast.AST, code: Code) -> Iterator[Edit]:
    match node:
        case ast.Call(func=ast.Name(id="list" | "dict"), args=[ast.Name() as copied], keywords=[]):
            yield code.replace(node, code.of(copied))


_EDITS: dict[BugKind, Callable[[ast.AST, Code], Iterator[Edit]]] = {
    BugKind.OFF_BY_ONE: _off_by_one,
    BugKind.WRONG_OPERATOR: _wrong_operator,
    BugKind.BOUNDARY: _boundary,
    BugKind.NEGATED: _negated,
    BugKind.SWAPPED_ARGUMENTS: _swapped_arguments,
    BugKind.MISSING_BASE_CASE: _missing_base_case,
    BugKind.WRONG_DEFAULT: _wrong_default,
    BugKind.MUTATED_ARGUMENT: _mutated_argument,
}
