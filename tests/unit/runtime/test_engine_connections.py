"""A runner's connections to engines, as workers change their roles and generations."""

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from agentrl.engine.remote_client import RemoteEngine
from agentrl.runtime.dispatch import EngineAddress
from agentrl.runtime.runner import Runner

ADDRESS = EngineAddress(
    worker_id="worker-0", generation=1, bucket="default", url="ws://127.0.0.1:1"
)


@dataclass(eq=False)
class Connection:
    url: str
    is_connected: bool = True

    async def close(self) -> None:
        self.is_connected = False


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    made = []

    async def connect(url: str, _: str) -> Connection:
        made.append(Connection(url))
        return made[-1]

    monkeypatch.setattr(RemoteEngine, "connect", connect)
    return made


@pytest.fixture
def runner() -> Runner:
    nothing = cast(Any, None)
    return Runner(nothing, nothing, "runner-0", nothing, "secret", nothing)


async def test_a_new_generation_of_the_same_engine_keeps_its_connection(
    runner: Runner, made: list[Connection]
) -> None:
    await runner.connect(ADDRESS)
    await runner.connect(replace(ADDRESS, generation=2))
    assert [engine.is_connected for engine in made] == [True]


async def test_another_engine_on_the_same_port_gets_a_connection_of_its_own(
    runner: Runner, made: list[Connection]
) -> None:
    await runner.connect(ADDRESS)
    await made[0].close()
    await runner.connect(replace(ADDRESS, generation=2))
    assert [engine.is_connected for engine in made] == [False, True]


async def test_the_connection_to_the_last_engine_is_closed_after_the_next_is_open(
    runner: Runner, made: list[Connection]
) -> None:
    await runner.connect(ADDRESS)
    await runner.connect(replace(ADDRESS, generation=2, url="ws://127.0.0.1:2"))
    assert [engine.is_connected for engine in made] == [False, True]


async def test_a_runner_goes_on_without_a_worker_that_it_cannot_reach(runner: Runner) -> None:
    """One that ends in this moment: its machine may be taken away from both at once."""
    with capture_logs() as logs:
        await runner.connect(ADDRESS)
    assert [line["worker"] for line in logs] == ["worker-0"]
