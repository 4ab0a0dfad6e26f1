"""Environments are found by entry point, module and file, in this process and in others."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from agentrl.registry import EnvRef, installed_envs

SOURCE = """
from __future__ import annotations
from agentrl import Env, Task
class Mine(Env):
    size: int = 3
    @classmethod
    def tasks(cls, split):
        yield Task("t", str(cls.size))
class NotOne: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_environment_file.py").write_text(SOURCE)
    (tmp_path / "lacks_something.py").write_text("import a_module_that_is_nowhere")
    (tmp_path / "broken.py").write_text("import sys\nclass Mine(:")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return str(tmp_path)


@pytest.mark.parametrize("place", ["my_environment_file.py", "my_environment_file"])
def test_a_reference_survives_pickling_and_loads_the_configured_class(
    folder: str, place: str
) -> None:
    ref = EnvRef(name=f"{place}:Mine", options={"size": 9}, folder=folder)
    loaded = pickle.loads(pickle.dumps(ref)).load()
    assert loaded.__name__ == "Mine"
    assert next(iter(loaded.tasks("train"))).prompt == "9"


def test_shipped_environments_have_short_names() -> None:
    assert {"trail", "calculator"} <= set(installed_envs())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trial", "did you mean 'trail'"),
        ("my_environment_file:Mien", "did you mean 'Mine'"),
        ("my_environment_file:NotOne", "no subclass of agentrl.Env"),
        ("nowhere.py:Mine", "there is no file"),
        ("nowhere_at_all:Mine", "there is no module 'nowhere_at_all'"),
        (":Mine", "or name a class as `pkg.module:Class`"),
        ("../folder:Mine", "or name a class as `pkg.module:Class`"),
        ("broken.py:Mine", r"broken.py, line 2: invalid syntax"),
        ("broken:Mine", r"broken.py, line 2: invalid syntax"),
    ],
)
def test_what_cannot_be_found_is_named(folder: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EnvRef(name=name, folder=folder).load()


def test_a_module_that_lacks_something_speaks_for_itself(folder: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_nowhere"):
        EnvRef(name="lacks_something:Mine", folder=folder).load()
