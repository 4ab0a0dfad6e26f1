"""What processes of a run log reaches the run's own log, with the name of who said it.

Each process keeps its newest warnings and errors, numbered, and hands them out by a long poll. The
driver asks from the moment it has started a process, so little is lost with one that is killed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from threading import Lock
from typing import NamedTuple, NoReturn

import orjson
import ray
import structlog
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError

from agentrl.record.log import keep_warnings, repeat
from agentrl.runtime.link import Actor

log = structlog.get_logger(__name__)

KEPT_LINES = 1000
POLL_S = 2.0
GATHER_S = 0.05
"""How long a line waits for others: a process that has much to say is not asked for each."""
RETRY_S = 0.5
LAST_WORDS_S = 3.0
"""For a process to hand out what it logged as it was closed."""


class Logged(NamedTuple):
    first: int
    """Number of the first of them; the first that a process ever logs is 1."""
    lines: list[str]


class KeptLines:
    """The newest lines of a process; `add` may be called by any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._newest = 0
        self._mutex = Lock()
        self._news = asyncio.Event()

    def add(self, line: str) -> None:
        with self._mutex:
            self._lines.append(line)
            self._newest += 1
        self._loop.call_soon_threadsafe(self._news.set)

    async def after(self, number: int | None, wait_s: float) -> Logged:
        """Those with higher numbers, as soon as there are any; after None: those to come."""
        if number is None:
            return Logged(self._newest + 1, [])
        self._news.clear()
        if self._newest <= number and wait_s:
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
                    await asyncio.sleep(GATHER_S)
            except TimeoutError:
                pass
        with self._mutex:
            num_new = min(self._newest - number, len(self._lines))
            return Logged(self._newest - num_new + 1, list(self._lines)[-num_new:][:num_new])


class LoggingActor:
    """Mixed into a Ray actor whose log somebody follows. Its first call must be `logged`."""

    _kept: KeptLines | None = None

    async def logged(self, after: int | None, wait_s: float) -> Logged:
        """Warnings and errors of this process, from the first call of this method on."""
        if self._kept is None:
            self._kept = KeptLines()
            keep_warnings(self._kept.add)
        return await self._kept.after(after, wait_s)


class _Followed:
    """A process, and how much of its log is known."""

    def __init__(self, name: str, actor: Actor, received: int | None) -> None:
        self.name = name
        self.actor = actor
        self.received = received
        self.asked = self.ask()

    def ask(self, wait_s: float = POLL_S) -> ray.ObjectRef[Logged]:
        self.asked = self.actor.logged.remote(self.received, wait_s)
        return self.asked


class ProcessLogs:
    """`run()` must be running."""

    def __init__(self) -> None:
        self._new: asyncio.Queue[_Followed] = asyncio.Queue()
        self._followed: dict[str, _Followed] = {}
        """Those that may live, by name."""
        self._shown: set[str] = set()
        """Events, by what they say."""

    def follow(self, name: str, actor: Actor, *, from_now: bool = False) -> None:
        """For whoever has just started the process, and has called nothing else of it. One that is
        followed already goes on being so.

        `from_now`: it is older than that, and what it logged before is not this run's.
        """
        if name in self._followed and self._followed[name].actor == actor:
            return
        followed = _Followed(name, actor, None if from_now else 0)
        self._followed[name] = followed
        self._new.put_nowait(followed)

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._follow(await self._new.get()))

    async def fetch_rest(self) -> None:
        """What the processes that live have logged until now."""
        await asyncio.gather(*map(self._fetch_rest, self._followed.values()))

    async def _follow(self, followed: _Followed) -> None:
        while True:
            try:
                self._note(followed, await followed.asked)
            except ActorUnavailableError:
                await asyncio.sleep(RETRY_S)
            except (RayActorError, ActorUnschedulableError):
                break
            followed.ask()
        if self._followed.get(followed.name) is followed:
            del self._followed[followed.name]

    async def _fetch_rest(self, followed: _Followed) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                self._note(followed, await followed.ask(wait_s=0))
        except (TimeoutError, RayActorError, ActorUnschedulableError):
            pass

    def _note(self, followed: _Followed, logged: Logged) -> None:
        received = logged.first - 1 if followed.received is None else followed.received
        if lost := logged.first - received - 1:
            log.warning("a process logs too fast to follow", process=followed.name, lost=lost)
        for line in logged.lines:
            event = orjson.loads(line)
            said = str(event["event"])
            repeat(event, process=followed.name, is_known=said in self._shown)
            self._shown.add(said)
        followed.received = logged.first + len(logged.lines) - 1
