"""How a launch ends when what is told of a process reaches whoever started the run."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from ray.exceptions import RayTaskError
from structlog.testing import capture_logs

from agentrl.record.disk import DiskFailed
from agentrl.runtime import session
from agentrl.runtime.failures import RunFailed


async def launch(monkeypatch: pytest.MonkeyPatch, cause: Exception) -> None:
    """A launch that a process of the run ends with this."""

    class FailingLaunch:
        def __init__(self, *_: object) -> None:
            pass

        async def run(self) -> Any:
            raise RayTaskError("tell", "a long traceback", cause).as_instanceof_cause()

    monkeypatch.setattr(session, "joined_cluster", lambda address: nullcontext())
    monkeypatch.setattr(session, "Launch", FailingLaunch)
    unused: Any = None
    config: Any = type("Config", (), {"runtime": type("Runtime", (), {"ray_address": None})})
    await session._launch(config, unused, unused, asyncio.Event(), unused)


async def test_a_disk_that_failed_elsewhere_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "could not write events.jsonl: the disk is full"
    with pytest.raises(RunFailed) as told:
        await launch(monkeypatch, DiskFailed(said))
    assert str(told.value) == said


async def test_what_a_person_can_mend_is_told_plainly_and_its_traceback_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with capture_logs() as logs, pytest.raises(ValueError, match="no such image"):
        await launch(monkeypatch, ValueError("no such image"))
    assert "a long traceback" in logs[0]["traceback"]
