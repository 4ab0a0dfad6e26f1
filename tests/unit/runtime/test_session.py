"""How a launch ends when what is told of a process reaches whoever started the run."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from agentrl.record.disk import DiskFailed
from agentrl.runtime import session
from agentrl.runtime.failures import RunFailed


class FailingLaunch:
    def __init__(self, *_: object) -> None:
        pass

    async def run(self) -> Any:
        cause = DiskFailed("could not write events.jsonl: the disk is full")
        raise RayTaskError("tell", "a long traceback", cause).as_instanceof_cause()


async def test_a_disk_that_failed_elsewhere_is_told_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "joined_cluster", lambda address: nullcontext())
    monkeypatch.setattr(session, "Launch", FailingLaunch)
    unused: Any = None
    config: Any = type("Config", (), {"runtime": type("Runtime", (), {"ray_address": None})})
    with pytest.raises(RunFailed) as told:
        await session._launch(config, unused, unused, asyncio.Event(), unused)
    assert str(told.value) == "could not write events.jsonl: the disk is full"
