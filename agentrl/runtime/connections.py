"""A runner's connections to engines: one to each worker, made again when it is missed.

A connection that breaks is made again by itself at once (`agentrl.engine.remote_client`). One that
could not be made, or was given up, is dialled again whenever a turn is placed on its worker: this
runner may be alone in not reaching it, and nobody would tell it of that worker once more. Pauses
before that grow, so a worker that drops each connection at once is not dialled as often as it drops.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NoReturn

import structlog

from agentrl.engine.engine import EngineError
from agentrl.engine.remote_client import RemoteEngine
from agentrl.runtime.dispatch import EngineAddress, Serving

log = structlog.get_logger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Before a worker that is missed is dialled; each is twice as long as the one before ..."""
CALM_S = 120.0
"""... until nobody had to dial it for so long."""


@dataclass(slots=True, eq=False)
class _Line:
    """To one engine."""

    address: EngineAddress
    engine: RemoteEngine | None = None
    is_missed: bool = False
    """It is about to be dialled for that."""
    pause_s: float = FIRST_PAUSE_S
    dialled_s: float = 0.0
    dialling: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_connected(self) -> bool:
        return self.engine is not None and self.engine.is_connected

    def next_pause_s(self, now_s: float) -> float:
        if now_s - self.dialled_s > CALM_S:
            self.pause_s = FIRST_PAUSE_S
        pause_s, self.pause_s = self.pause_s, min(2 * self.pause_s, LONGEST_PAUSE_S)
        return pause_s

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.close()


class Connections:
    """`run()` must be running for workers to be dialled again."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._lines: dict[str, _Line] = {}
        self._missed: asyncio.Queue[_Line] = asyncio.Queue()

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._dial_again(await self._missed.get()))

    async def connect(self, address: EngineAddress) -> None:
        """Turns may be placed on this worker, under this generation, from now on.

        Unless it cannot be reached, as one that ends in this moment: then they are rejected here.
        """
        before = self._lines.get(address.worker_id)
        if before is not None and before.address.url == address.url:
            before.address = address
            return await self._dial(before)
        line = self._lines[address.worker_id] = _Line(address)
        await self._dial(line)
        if before is not None:
            await before.close()

    def reach(self, worker_id: str, generation: int) -> Serving | None:
        """The worker of this generation, where the connection to it holds. Where it does not, it is
        made again; the caller does not wait for that."""
        line = self._lines.get(worker_id)
        if line is None or line.address.generation != generation:
            return None
        if line.engine is not None and line.engine.is_connected:
            return Serving(line.address.bucket, line.engine)
        if not line.is_missed:
            line.is_missed = True
            self._missed.put_nowait(line)
        return None

    async def close(self) -> None:
        for line in self._lines.values():
            await line.close()

    async def _dial_again(self, line: _Line) -> None:
        await asyncio.sleep(line.next_pause_s(asyncio.get_running_loop().time()))
        if self._is_current(line):
            await self._dial(line)
        line.is_missed = False

    async def _dial(self, line: _Line) -> None:
        async with line.dialling:
            if line.is_connected:
                return
            try:
                engine = await RemoteEngine.connect(line.address.url, self._secret)
            except EngineError as error:
                name = line.address.worker_id
                log.warning("a worker cannot be reached", worker=name, reason=str(error))
                return
            finally:
                line.dialled_s = asyncio.get_running_loop().time()
            if not self._is_current(line):
                return await engine.close()
            before, line.engine = line.engine, engine
            if before is not None:
                await before.close()

    def _is_current(self, line: _Line) -> bool:
        """The worker has no other engine by now."""
        return self._lines.get(line.address.worker_id) is line
