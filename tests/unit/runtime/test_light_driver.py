"""The process that a user starts orders others about: what they compute with, it need not load."""

import subprocess
import sys

HEAVY = {"torch", "transformers"}


def test_the_driver_loads_neither_torch_nor_transformers() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import agentrl.runtime.session, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert not HEAVY & set(said.stdout.split())
