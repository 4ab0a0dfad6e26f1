"""What processes log, on its way to the log of their run: once, in order, whatever breaks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import structlog
from ray.exceptions import ActorUnavailableError, RayActorError

from agentrl.record.jsonl import read_lines
from agentrl.record.log import logging_to
from agentrl.runtime import process_logs
from agentrl.runtime.process_logs import KEPT_LINES, KeptLines, LoggingActor, ProcessLogs

DEADLINE_S = 30


def line(text: str) -> str:
    event = {"event": text, "level": "warning", "logger": "theirs", "timestamp": "then"}
    return json.dumps(event)


class Method:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = lambda *arguments: asyncio.ensure_future(function(*arguments))


class FakeProcess:
    """One that is asked for what it logs; `failures` are raised instead of answers, in turn."""

    def __init__(self) -> None:
        self.kept = KeptLines()
        self.failures: list[Exception] = []
        self.logged = Method(self._logged)
        self.is_caught_up = asyncio.Event()

    async def _logged(self, after: int | None, wait_s: float) -> Any:
        if after == self.kept._newest:
            self.is_caught_up.set()
        answer = await self.kept.after(after, wait_s)
        if self.failures:
            raise self.failures.pop(0)
        return answer


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(process_logs, "GATHER_S", 0.0)
    monkeypatch.setattr(process_logs, "RETRY_S", 0.0)
    shown.clear()
    with logging_to(tmp_path / "log.jsonl", print_line=shown.append):
        yield tmp_path / "log.jsonl"


shown: list[str] = []


async def follow(logs: ProcessLogs, process: FakeProcess) -> None:
    """Until all that it has logged is known, and it is gone."""
    running = asyncio.create_task(logs.run())
    async with asyncio.timeout(DEADLINE_S):
        await process.is_caught_up.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_run_has_all_lines_and_a_person_sees_the_first_of_a_kind(path: Path) -> None:
    process, logs = FakeProcess(), ProcessLogs()
    logs.follow("runner-0", process)
    for text in ("lost", "lost", "slow"):
        process.kept.add(line(text))
    await follow(logs, process)
    lines = [entry for _, entry in read_lines(path)]
    assert [entry["event"] for entry in lines] == ["lost", "lost", "slow"]
    assert {entry["process"] for entry in lines} == {"runner-0"}
    assert {(entry["level"], entry["timestamp"]) for entry in lines} == {("warning", "then")}
    assert shown == ["warning: lost (process=runner-0)", "warning: slow (process=runner-0)"]


async def test_an_answer_that_is_lost_comes_again_and_is_told_once(path: Path) -> None:
    process, logs = FakeProcess(), ProcessLogs()
    process.failures = [ActorUnavailableError("for a moment", None)]
    process.kept.add(line("first"))
    logs.follow("worker-0", process)
    await follow(logs, process)
    assert [entry["event"] for _, entry in read_lines(path)] == ["first"]


async def test_who_logs_too_fast_has_a_gap_that_is_told(path: Path) -> None:
    process, logs = FakeProcess(), ProcessLogs()
    for number in range(KEPT_LINES + 3):
        process.kept.add(line(f"{number}"))
    logs.follow("worker-0", process)
    await follow(logs, process)
    first, second, *_, last = (entry for _, entry in read_lines(path))
    assert (first["event"], first["lost"]) == ("a process logs too fast to follow", 3)
    assert (second["event"], last["event"]) == ("3", f"{KEPT_LINES + 2}")


async def test_of_a_process_that_is_older_than_the_run_only_news_count(path: Path) -> None:
    process, logs = FakeProcess(), ProcessLogs()
    process.kept.add(line("of another run"))
    logs.follow("broker", process, from_now=True)
    await follow(logs, process)
    process.kept.add(line("news"))
    await logs.fetch_rest()
    assert [entry["event"] for _, entry in read_lines(path)] == ["news"]


async def test_last_words_are_fetched_of_those_that_live(path: Path) -> None:
    living, dead, logs = FakeProcess(), FakeProcess(), ProcessLogs()
    logs.follow("runner-0", living)
    logs.follow("runner-1", dead)
    await follow(logs, living)
    dead.failures = [RayActorError()]
    living.kept.add(line("a box stays"))
    await logs.fetch_rest()
    assert [entry["event"] for _, entry in read_lines(path)] == ["a box stays"]


@pytest.fixture
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("_logging_as_it_was")
async def test_an_actor_hands_out_its_warnings_of_all_threads_as_they_come() -> None:
    actor = LoggingActor()
    assert await actor.logged(0, 0) == (1, [])
    waiting = asyncio.create_task(actor.logged(0, DEADLINE_S))
    await asyncio.sleep(0)
    log = structlog.get_logger("agentrl.test")
    log.info("all is well")
    thread = Thread(target=lambda: log.warning("from a thread", number=3))
    thread.start()
    thread.join()
    logging.getLogger("library").error("from %s", "elsewhere")
    first, lines = await asyncio.wait_for(waiting, DEADLINE_S)
    assert first == 1
    assert [json.loads(each)["event"] for each in lines] == ["from a thread", "from elsewhere"]
    assert await actor.logged(2, 0) == (3, [])
    assert (await actor.logged(1, 0)).first == 2
