from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import structlog

from agentrl.record.jsonl import read_lines
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
