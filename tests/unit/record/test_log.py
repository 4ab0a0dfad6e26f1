from __future__ import annotations

import errno
import logging
from pathlib import Path

import numpy as np
import pytest
import structlog

from agentrl.record.jsonl import AppendFile, read_lines
from agentrl.record.log import logging_to


def test_everything_lands_in_the_file_and_warnings_before_a_person(tmp_path: Path) -> None:
    path, shown = tmp_path / "log.jsonl", list[str]()
    log = structlog.get_logger("agentrl.test")
    with logging_to(path, print_line=shown.append):
        log.info("started", value=np.float32(0.5), raw=b"\xff")
        log.warning("slow", seconds=3)
        logging.getLogger("library").warning("from %s", "elsewhere")
        try:
            raise RuntimeError("boom")
        except RuntimeError:
            log.exception("failed")
    lines = [line for _, line in read_lines(path)]
    assert [line["event"] for line in lines] == ["started", "slow", "from elsewhere", "failed"]
    assert lines[0]["value"] == 0.5
    assert lines[0]["raw"] == "\\xff"
    assert lines[2]["logger"] == "library"
    assert "RuntimeError: boom" in lines[3]["exception"]
    assert shown[:2] == ["warning: slow (seconds=3)", "warning: from elsewhere"]
    assert shown[2].startswith("error: failed\nTraceback")


def test_handlers_are_gone_afterwards(tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers)
    with logging_to(tmp_path / "log.jsonl"):
        pass
    assert logging.getLogger().handlers == before


def test_a_disk_that_refuses_lines_is_shown_once_and_the_lines_are_shown_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(AppendFile, "append", refuse)
    path, shown = tmp_path / "log.jsonl", list[str]()
    with logging_to(path, print_line=shown.append):
        for text in ("first", "second"):
            structlog.get_logger("agentrl.test").warning(text)
    assert shown == [
        f"warning: {path} lacks some lines from here on: [Errno 28] No space left on device",
        "warning: first",
        "warning: second",
    ]
    assert capsys.readouterr().err == ""
