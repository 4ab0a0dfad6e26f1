"""The base image of Docker boxes, built by the script that a checkout has, and tried out."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Literal

from sandboxes.sandbox import SandboxError
from sandboxes.spec import SandboxSpec

BaseRecipe = Literal["auto", "dockerfile", "packages"]

SCRIPT = Path(__file__).parents[1] / "docker/build-base.sh"


async def build_base(tag: str, recipe: BaseRecipe = "auto", *, script: Path = SCRIPT) -> float:
    """Builds, with the script's output on ours, then makes a box; its milliseconds.

    Raises `BackendUnavailable` without an engine, and `SandboxError` when the image cannot be built
    or is no good.
    """
    from sandboxes.engine.backend import DockerBackend

    backend = await asyncio.to_thread(lambda: DockerBackend(run_id="build"))
    try:
        await asyncio.to_thread(_run, script, tag, recipe)
        started = time.perf_counter()
        async with await backend.create(SandboxSpec(image=tag)) as box:
            took_ms = (time.perf_counter() - started) * 1000
            ran = await box.exec("git --version && python3 --version")
        if not ran.ok:
            raise SandboxError(f"boxes of {tag} start, but have no git or no python3: {ran.text}")
        return took_ms
    finally:
        await backend.close()


def _run(script: Path, tag: str, recipe: BaseRecipe) -> None:
    if not script.exists():
        raise SandboxError(
            f"there is no {script}; the base image is built from a checkout of agentrl, so run "
            "docker/build-base.sh there"
        )
    ended = subprocess.run([str(script), tag, recipe])
    if ended.returncode:
        raise SandboxError(
            f"{script.name} could not build {tag!r} (exit code {ended.returncode}); its last lines "
            "say why"
        )
