"""swe-rex's figures, from a virtual environment of its own that is made when it is first wanted."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

from sandboxes import SandboxSpec

VENV = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "agentrl/swe-rex"
PACKAGES = ("swe-rex==1.4.0", "aiohttp")  # its client imports aiohttp and does not ask for it
TIMEOUT_S = 300


def swe_rex_figures(engine_url: str) -> dict[str, float]:
    """Nothing, and the reason on stdout, where it cannot be installed or does not run."""
    python = VENV / "bin/python"
    side = Path(__file__).with_name("swe_rex_side.py")
    try:
        if not python.exists():
            venv.create(VENV, with_pip=True)
        if subprocess.run(
            [str(python), "-c", "import swerex.server"], capture_output=True
        ).returncode:
            _run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES])
        said = _run([str(python), str(side), SandboxSpec().image, engine_url])
    except (OSError, subprocess.SubprocessError) as e:
        print(f"swe-rex was not measured: {e} {getattr(e, 'stderr', '')}")
        return {}
    figures: dict[str, float] = json.loads(said.splitlines()[-1])
    return figures


def _run(command: list[str]) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S
    ).stdout
