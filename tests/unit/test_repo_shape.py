"""Rules of the repository that no linter knows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from agentrl.config.docs import page

ROOT = Path(__file__).parents[2]
MAX_LINES = 600
PACKAGES = {"agentrl", "envs", "sandboxes", "scheduler"}
SHAPELESS = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(work|root|home/\w+|Users/\w+)(?=[/\s\"'`:,)]|$)", re.MULTILINE
)


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False, text=True
    ).stdout
    if not names:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_outgrows_its_subject(tracked: list[Path]) -> None:
    code = [path for path in tracked if path.suffix in {".py", ".js", ".css"}]
    long = {path.name: len(path.read_text().splitlines()) for path in code}
    assert not {name: lines for name, lines in long.items() if lines > MAX_LINES}


def test_files_are_named_after_what_they_own(tracked: list[Path]) -> None:
    assert not [path for path in tracked if path.name in SHAPELESS]


def test_no_script_takes_the_place_of_a_package(tracked: list[Path]) -> None:
    """The folder of a script comes first on the search path of all that it runs."""
    scripts = [path for path in tracked if path.parent == ROOT / "tests/bench"]
    assert scripts
    assert not [path.name for path in scripts if path.stem in PACKAGES]


def test_nothing_knows_the_machine_it_was_written_on(tracked: list[Path]) -> None:
    found = []
    for path in tracked:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if path != Path(__file__):
            found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in MACHINE_PATH.finditer(text)]
    assert not found


def test_modules_say_what_they_own(tracked: list[Path]) -> None:
    modules = [p for p in tracked if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in PACKAGES]
    silent = [p for p in modules if p.stat().st_size and not p.read_text().startswith('"""')]
    assert not [str(path.relative_to(ROOT)) for path in silent]


def test_the_page_of_all_keys_is_current() -> None:
    assert (ROOT / "docs/config.md").read_text() == page(), (
        "run: python -m agentrl.config.docs > docs/config.md"
    )
