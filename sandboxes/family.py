"""Zygotes in the event loop: who asks one for a box is told what became of it.

There is one zygote for each shape of root (user and workdir) that boxes are wanted of, started
with the first of them. When one dies its boxes die with it; whoever waits for a box of it gets a
`SandboxError`, and the next box is asked of a new one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Sequence

from sandboxes.sandbox import SandboxError
from sandboxes.spec import SandboxSpec
from sandboxes.zygote import Zygote

log = logging.getLogger(__name__)

MAX_IDLE = 4
"""Zygotes without an open box that are kept for the next one."""

InThread = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a call in a thread that outlives all boxes."""


class Birth:
    """A box that was asked for."""

    def __init__(self, box: int, pidfd: asyncio.Future[int]) -> None:
        self.box = box
        self.pidfd = pidfd
        """Of its process, to be closed by whoever asked."""
        self.problem = ""
        """Why it never became usable."""


class Family:
    """One zygote and the boxes that it was asked for."""

    def __init__(self, zygote: Zygote, in_thread: InThread) -> None:
        self.zygote = zygote
        self.loop = asyncio.get_running_loop()
        self.births: dict[int, Birth] = {}
        self.num_users = 0
        """Boxes that exist or are about to; who is given a family counts as one."""
        self.last_words = ""
        self._in_thread = in_thread
        self._ids = itertools.count(1)
        self._sending = asyncio.Lock()
        self._end: asyncio.Task[None] | None = None
        self.loop.add_reader(zygote.control, self._on_answers)

    @property
    def is_usable(self) -> bool:
        return self._end is None and self.loop is asyncio.get_running_loop()

    async def fork(self, request: bytes, fds: Sequence[int]) -> Birth:
        """A box on the stream `fds[0]`; `forget` it when it has been deleted."""
        birth = Birth(next(self._ids), self.loop.create_future())
        self.births[birth.box] = birth
        try:
            async with self._sending:
                while True:
                    try:
                        self.zygote.ask(birth.box, request, fds)
                        break
                    except BlockingIOError:
                        await self._writable()
            await asyncio.wait([birth.pidfd])
            birth.pidfd.result()
        except BaseException:
            self.forget(birth)
            raise
        return birth

    async def _writable(self) -> None:
        writable = asyncio.Event()
        self.loop.add_writer(self.zygote.control, writable.set)
        try:
            await writable.wait()
        finally:
            self.loop.remove_writer(self.zygote.control)

    def forget(self, birth: Birth) -> None:
        self.births.pop(birth.box, None)

    def _on_answers(self) -> None:
        try:
            while (answer := self.zygote.answer()) is not None:
                self._on_answer(answer.box, answer.pidfd, answer.problem)
        except BlockingIOError:
            return
        self._begin_end()

    def _on_answer(self, box: int, pidfd: int, problem: str) -> None:
        """Of a box that fails we may hear this before that it was forked."""
        birth = self.births.get(box)
        if birth is not None:
            birth.problem = problem
        if birth is None or birth.pidfd.done():
            if pidfd >= 0:
                os.close(pidfd)
        elif pidfd >= 0:
            birth.pidfd.set_result(pidfd)
        else:
            birth.pidfd.set_exception(SandboxError(f"could not make a box: {problem}"))

    def _begin_end(self) -> asyncio.Task[None]:
        if self._end is None:
            self.loop.remove_reader(self.zygote.control)
            self._end = asyncio.create_task(self._ended())
        return self._end

    async def _ended(self) -> None:
        def end() -> None:
            try:
                self.last_words = self.zygote.end()
            except OSError as error:  # whoever waits for a box must not wait for its end
                log.warning("of the process that boxes are forked from: %s", error)
                self.last_words = str(error)

        await self._in_thread(end)
        words = f"the process that boxes are forked from has ended: {self.last_words}"
        for birth in self.births.values():
            birth.problem = birth.problem or words
            if not birth.pidfd.done():
                birth.pidfd.set_exception(SandboxError(words))

    async def end(self) -> None:
        await asyncio.shield(self._begin_end())


class Families:
    """The zygotes of a backend."""

    def __init__(self, bwrap: str, in_thread: InThread) -> None:
        self._bwrap = bwrap
        self._in_thread = in_thread
        self._families: dict[tuple[int, str], asyncio.Task[Family]] = {}

    async def of(self, spec: SandboxSpec) -> Family:
        """A family with the caller among its users."""
        key = (spec.user, spec.workdir)
        while True:
            starting = self._families.get(key)
            if starting is None or (starting.done() and not _is_usable(starting)):
                starting = self._families[key] = asyncio.create_task(self._start(spec))
                await self._end_idle(but=key)
            family = await asyncio.shield(starting)
            if family.is_usable:  # or it was ended for want of users while we waited
                family.num_users += 1
                return family

    async def _start(self, spec: SandboxSpec) -> Family:
        zygotes: list[Zygote] = []
        await self._in_thread(lambda: zygotes.append(Zygote(self._bwrap, spec)))
        return Family(zygotes[0], self._in_thread)

    async def _end_idle(self, *, but: tuple[int, str]) -> None:
        idle = [key for key, family in self._families.items() if key != but and _is_idle(family)]
        for key in idle[: max(0, len(idle) - MAX_IDLE)]:
            if (family := self._families.pop(key, None)) is not None:
                await _end(family)

    async def close(self) -> None:
        while self._families:
            await _end(self._families.popitem()[1])


def _is_usable(started: asyncio.Task[Family]) -> bool:
    return not started.cancelled() and not started.exception() and started.result().is_usable


def _is_idle(started: asyncio.Task[Family]) -> bool:
    return started.done() and (not _is_usable(started) or not started.result().num_users)


async def _end(starting: asyncio.Task[Family]) -> None:
    await asyncio.wait([starting])
    if not starting.cancelled() and not starting.exception():
        await starting.result().end()
