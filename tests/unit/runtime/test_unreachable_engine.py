"""A worker that ends while a runner is told of it: its machine may be taken away from both at once."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from agentrl.config.load import load_config
from agentrl.record.journal_writer import JournalWriter
from agentrl.registry import EnvRef
from agentrl.runtime.dispatch import EngineAddress
from agentrl.runtime.link import CoordinatorAddress
from agentrl.runtime.runner import Runner

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


async def test_a_runner_goes_on_without_a_worker_that_it_cannot_reach(tmp_path: Path) -> None:
    runner = Runner(
        load_config(QUICKSTART),
        EnvRef(name="trail"),
        "runner-0",
        CoordinatorAddress("nobody", 0),
        "secret",
        JournalWriter(tmp_path, number=0, name="runner-0"),
    )
    gone = EngineAddress(worker_id="w0", generation=0, bucket="default", url="ws://127.0.0.1:1")
    with capture_logs() as logs:
        await runner.connect(gone)
    assert [line["worker"] for line in logs] == ["w0"]
