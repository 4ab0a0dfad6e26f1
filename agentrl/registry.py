"""Finds an environment class by name, here and in every other process of a run.

Three ways to name one: an entry point in the group `agentrl.envs`, `pkg.module:Class`, or
`path/to/file.py:Class`. Classes that `configure()` made cannot be pickled; an `EnvRef` can, and
loads the same class wherever it arrives.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.env import Env, nearest, seed_of
from agentrl.types import Json

ENTRY_POINT_GROUP = "agentrl.envs"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvRef:
    """An environment by name, with its options."""

    name: str
    options: Mapping[str, Json] = field(default_factory=dict)
    folder: str = field(default_factory=lambda: str(Path.cwd()))
    """Where paths and modules of the user's own are looked for; other processes run elsewhere."""

    def load(self) -> type[Env]:
        """The configured class. Raises ValueError when there is none, or when it cannot work."""
        try:
            found = _find(self.name, Path(self.folder))
        except SyntaxError as error:
            raise ValueError(
                f"no environment {self.name!r}: {error.filename}, line {error.lineno}: {error.msg}"
            ) from error
        return found.configure(self.options)


def installed_envs() -> dict[str, EntryPoint]:
    """Environments known by a short name."""
    found = entry_points(group=ENTRY_POINT_GROUP)
    return {point.name: point for point in sorted(found, key=lambda point: point.name)}


def _find(name: str, folder: Path) -> type[Env]:
    place, colon, class_name = name.rpartition(":")
    if colon and place.endswith(".py"):
        return _class_in(_load_file(folder / place), class_name, name)
    if colon and all(part.isidentifier() for part in place.split(".")):
        return _class_in(_load_module(place, folder, name), class_name, name)
    known = installed_envs()
    if name not in known:
        raise ValueError(
            f"no environment {name!r}{nearest(name, known)}; installed: {', '.join(known)}; "
            "or name a class as `pkg.module:Class` or `path/to/file.py:Class`"
        )
    return _checked(known[name].load(), name)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"no environment: there is no file {path}")
    path = path.resolve()
    module_name = f"agentrl_env_{path.stem}_{seed_of(str(path)):x}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # annotations are resolved through sys.modules, so the module must be there
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _load_module(module_name: str, folder: Path, name: str) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # a module that is there and lacks a dependency of its own speaks for itself
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"no environment {name!r}: there is no module {error.name!r} in {folder} or installed"
        ) from error


def _class_in(module: ModuleType, class_name: str, name: str) -> type[Env]:
    if not hasattr(module, class_name):
        there = [key for key, value in vars(module).items() if _is_env(value)]
        raise ValueError(
            f"no environment {name!r}: the module has no {class_name!r}"
            f"{nearest(class_name, there)}; environments in it: {', '.join(there) or 'none'}"
        )
    return _checked(getattr(module, class_name), name)


def _checked(found: Any, name: str) -> type[Env]:
    if not _is_env(found):
        raise ValueError(f"{name!r} is {found!r}, which is no subclass of agentrl.Env")
    env_class: type[Env] = found
    env_class.definition()
    return env_class


def _is_env(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Env) and value is not Env
