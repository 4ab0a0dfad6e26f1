"""boxd as one program, and the command line that receives it over a box's stream.

Sending it costs microseconds and spares mounts, copies into images and files on the host; it
works the same for a container on a remote engine and for a namespace on this machine.
"""

from __future__ import annotations

import ast
import functools
import importlib.resources
import marshal
import os
import sys
import types
from collections.abc import Sequence
from importlib.util import MAGIC_NUMBER

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""Our own interpreter, behind any virtual environment: for boxes on this machine."""

_MODULES = (
    *("frames", "capture", "supervisor", "supervision", "files", "loop", "command", "direct"),
    "main",
)
"""boxd, in the order of their imports of each other."""
_ZYGOTE_MODULES = (*_MODULES, "namespaces", "zygote")

_BOOTSTRAP = """\
import posix, marshal, _frozen_importlib_external
def take(n):
    data = b""
    while len(data) < n:
        part = posix.read(0, n - len(data))
        if not part: raise SystemExit(0)
        data += part
    return data
def part():
    return take(int.from_bytes(take(4), "big"))
is_ours = take(1) == b"m"
code = part()
if not is_ours:
    source = part()
    is_ours = code[:4] == _frozen_importlib_external.MAGIC_NUMBER
    code = code[4:] if is_ours else source
exec(marshal.loads(code) if is_ours else code)
"""


def boot_argv(python: str, *args: str) -> list[str]:
    """What to run in the box. No site, no environment, no user's modules: quick and untouched."""
    return [python, "-I", "-S", "-E", "-c", _BOOTSTRAP, *args]


@functools.cache
def boot_bytes(*, same_python: bool) -> bytes:
    """The first bytes of the stream: bytecode for our own interpreter.

    For another's, bytecode in case it is of our version, which spares it 60 ms, and the source.
    """
    bytecode = marshal.dumps(_code())
    if same_python:
        return _framed(b"m", bytecode)
    return _framed(b"v", MAGIC_NUMBER + bytecode) + _framed(b"", _source())


@functools.cache
def zygote_bytes() -> bytes:
    """The same for a zygote, which always has our own interpreter."""
    return _framed(b"m", marshal.dumps(_compiled(_joined(_ZYGOTE_MODULES, "zygote"))))


def _framed(kind: bytes, program: bytes) -> bytes:
    return kind + len(program).to_bytes(4, "big") + program


@functools.cache
def _source() -> bytes:
    return ast.unparse(_joined(_MODULES, "main")).encode()


@functools.cache
def _code() -> types.CodeType:
    return _compiled(_joined(_MODULES, "main"))


def _compiled(program: ast.Module) -> types.CodeType:
    return compile(program, "boxd", "exec", dont_inherit=True, optimize=2)


def _joined(modules: Sequence[str], entry: str) -> ast.Module:
    folder = importlib.resources.files("sandboxes.boxd")
    body: list[ast.stmt] = []
    for name in modules:
        tree = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        body += [node for node in tree.body if not _is_dropped(node)]
    body += ast.parse(f"{entry}(sys.argv[1:])").body
    return ast.Module(body=body, type_ignores=[])


def _is_dropped(node: ast.stmt) -> bool:
    """Imports of each other, and those for annotations."""
    return isinstance(node, ast.ImportFrom) and (
        node.module == "collections.abc" or str(node.module).startswith("sandboxes.boxd.")
    )
