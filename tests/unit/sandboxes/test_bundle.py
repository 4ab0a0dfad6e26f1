"""boxd is one program: no name twice, nothing to import but C modules, the same from source."""

from __future__ import annotations

import ast
import importlib.resources
import importlib.util
import socket
import subprocess
import sys

import pytest

from sandboxes import bundle, wire
from sandboxes.boxd import frames

C_MODULES = {"_ctypes", "_signal", "errno", "posix", "resource", "select", "sys", "time"}
ZYGOTE_MODULES = C_MODULES | {"_socket", "ctypes", "gc", "marshal"}


def modules() -> dict[str, ast.Module]:
    folder = importlib.resources.files("sandboxes.boxd")
    return {
        name: ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        for name in bundle._ZYGOTE_MODULES
    }


def test_every_module_is_in_the_bundle() -> None:
    folder = importlib.resources.files("sandboxes.boxd")
    found = {file.name for file in folder.iterdir() if file.name.endswith(".py")}
    assert found == {f"{name}.py" for name in bundle._ZYGOTE_MODULES} | {"__init__.py"}


def test_no_name_is_defined_twice() -> None:
    names = [
        name for tree in modules().values() for node in tree.body for name in defined_names(node)
    ]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


def defined_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        targets = [name for target in node.targets for name in ast.walk(target)]
        return [name.id for name in targets if isinstance(name, ast.Name)]
    return []


@pytest.mark.parametrize(
    ("modules", "allowed"),
    [(bundle._MODULES, C_MODULES), (bundle._ZYGOTE_MODULES, ZYGOTE_MODULES)],
    ids=["boxd", "zygote"],
)
def test_little_is_imported(modules: tuple[str, ...], allowed: set[str]) -> None:
    program = bundle._joined(modules, "main")
    imported = {
        alias.name
        for node in ast.walk(program)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported <= allowed
    assert not [node for node in ast.walk(program) if isinstance(node, ast.ImportFrom)]


def test_source_is_good_for_older_pythons() -> None:
    ast.parse(bundle._source(), feature_version=(3, 8))


def for_another_version() -> bytes:
    """Bytecode that this interpreter must not run, and the source."""
    program = bundle.boot_bytes(same_python=False)
    magic = importlib.util.MAGIC_NUMBER
    assert program.count(magic) == 1
    return program.replace(magic, b"\0" * len(magic))


@pytest.mark.parametrize(
    "program",
    [
        bundle.boot_bytes(same_python=True),
        bundle.boot_bytes(same_python=False),
        for_another_version(),
    ],
    ids=["ours", "our version", "another version"],
)
@pytest.mark.parametrize("arguments", [(), ("oom=/nowhere",)], ids=["", "no control group"])
def test_the_program_runs_from_bytecode_and_from_source(
    program: bytes, arguments: tuple[str, ...]
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            bundle.boot_argv(sys.executable, *arguments),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
        )
        theirs.close()
        ours.settimeout(20)
        ours.sendall(program)
        expected = wire.frame(frames.READY, 0, frames.VERSION.to_bytes(4, "big"))
        assert ours.recv(100) == expected
    assert process.wait(20) == 0
