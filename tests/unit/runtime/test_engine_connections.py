"""A runner's connections to engines, as workers change their roles and generations."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from structlog.testing import capture_logs

from agentrl.engine.engine import EngineError
from agentrl.engine.remote_client import RemoteEngine
from agentrl.runtime import connections
from agentrl.runtime.connections import Connections
from agentrl.runtime.dispatch import EngineAddress

ADDRESS = EngineAddress(
    worker_id="worker-0", generation=1, bucket="default", url="ws://127.0.0.1:1"
)


@dataclass(eq=False)
class Connection:
    url: str
    is_connected: bool = True

    async def close(self) -> None:
        self.is_connected = False


class Network:
    """Where workers are dialled."""

    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.num_dialled = 0
        self.is_up = True
        self.drops = False
        """Each connection breaks as soon as it is made."""
        self.let_through = asyncio.Event()
        self.let_through.set()

    async def connect(self, url: str, _: str) -> Connection:
        self.num_dialled += 1
        await self.let_through.wait()
        if not self.is_up:
            raise EngineError("nobody there")
        self.made.append(Connection(url, is_connected=not self.drops))
        return self.made[-1]

    @property
    def open(self) -> list[bool]:
        return [engine.is_connected for engine in self.made]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(RemoteEngine, "connect", network.connect)
    return network


@pytest.fixture
async def runner() -> AsyncIterator[Connections]:
    runner = Connections("secret")
    running = asyncio.create_task(runner.run())
    yield runner
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


def reaches(runner: Connections, generation: int = 1) -> bool:
    return runner.reach("worker-0", generation) is not None


async def test_a_worker_is_reached_under_the_generation_it_was_told_of(
    runner: Connections, network: Network
) -> None:
    assert not reaches(runner)
    await runner.connect(ADDRESS)
    assert [reaches(runner, generation) for generation in (0, 1, 2)] == [False, True, False]
    assert network.num_dialled == 1, "nobody dials for generations that are gone or unknown"


async def test_a_new_generation_of_the_same_engine_keeps_its_connection(
    runner: Connections, network: Network
) -> None:
    await runner.connect(ADDRESS)
    await runner.connect(replace(ADDRESS, generation=2))
    assert network.open == [True]
    assert reaches(runner, 2)


async def test_another_engine_on_the_same_port_gets_a_connection_of_its_own(
    runner: Connections, network: Network
) -> None:
    await runner.connect(ADDRESS)
    await network.made[0].close()
    await runner.connect(replace(ADDRESS, generation=2))
    assert network.open == [False, True]


async def test_the_connection_to_the_last_engine_is_closed_after_the_next_is_open(
    runner: Connections, network: Network
) -> None:
    await runner.connect(ADDRESS)
    await runner.connect(replace(ADDRESS, generation=2, url="ws://127.0.0.1:2"))
    assert network.open == [False, True]


async def test_a_runner_goes_on_without_a_worker_that_it_cannot_reach(
    runner: Connections, network: Network
) -> None:
    """One that ends in this moment: its machine may be taken away from both at once."""
    network.is_up = False
    with capture_logs() as logs:
        await runner.connect(ADDRESS)
    assert [line["worker"] for line in logs] == ["worker-0"]


@pytest.mark.parametrize("was_reached", [False, True])
async def test_a_worker_that_is_missed_is_dialled_again(
    runner: Connections, network: Network, was_reached: bool
) -> None:
    """Nobody tells a runner of a worker twice, so what it has given up once would stay lost to it."""
    network.is_up = was_reached
    await runner.connect(ADDRESS)
    if was_reached:
        await network.made[0].close()
    network.is_up = True
    for _ in range(3000):
        if reaches(runner):
            break
        await asyncio.sleep(0.01)
    assert reaches(runner)


async def test_a_worker_that_drops_each_connection_is_dialled_ever_more_rarely(
    runner: Connections, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(pause_s: float) -> None:
        pauses.append(pause_s)
        await sleep(0)

    network.drops = True
    await runner.connect(ADDRESS)
    monkeypatch.setattr(asyncio, "sleep", note)
    for dialled in range(2, 12):
        while network.num_dialled < dialled:
            assert not reaches(runner)
            await sleep(0)
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert pauses[8:10] == [30.0, 30.0]
    later_s = asyncio.get_running_loop().time() + connections.CALM_S + 1
    assert runner._lines["worker-0"].next_pause_s(later_s) == 0.5


async def test_an_engine_that_answers_after_another_took_its_place_is_let_go(
    runner: Connections, network: Network
) -> None:
    network.let_through.clear()
    late = asyncio.create_task(runner.connect(ADDRESS))
    await asyncio.sleep(0)
    newest = asyncio.create_task(
        runner.connect(replace(ADDRESS, generation=2, url="ws://127.0.0.1:2"))
    )
    await asyncio.sleep(0)
    network.let_through.set()
    await asyncio.gather(late, newest)
    assert network.open == [False, True]
    assert reaches(runner, 2)
