"""The warm pool: boxes are made before they are asked for, and deleted after they are given back.

Making a box costs milliseconds with namespaces and a third of a second with an engine, so unused
boxes are kept ready along the upcoming tasks. A box serves one rollout: what is given back is
deleted, never handed out again.

Two counts are kept. *Permits* are boxes leased to rollouts; they are granted to whole groups in
order of arrival. *Slots* are boxes that exist in any state, from before their creation until after
their deletion. A lease that finds no free slot evicts a ready box, so ready boxes never keep a
rollout waiting, and neither count is ever above `max_open`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sandboxes.permits import Permits
from sandboxes.sandbox import Sandbox, SandboxBackend, SandboxError
from sandboxes.spec import SandboxSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetrics:
    """A snapshot; the upper half is now, the lower half since the start."""

    leased: int
    ready: int
    creating: int
    deleting: int
    waiting: int
    """Boxes that are asked for and not yet granted."""

    warm_hits: int
    """Leases that found a ready box."""
    cold_misses: int
    created: int
    create_failures: int
    deleted: int
    delete_failures: int
    died_ready: int
    """Ready boxes that were dead, or too old, when their turn came."""
    evicted: int
    create_seconds: float
    wait_seconds: float
    delete_seconds: float


class _ReadyBox(NamedTuple):
    box: Sandbox
    expires: float


class SandboxPool:
    """`async with pool.lease(spec) as box`, or `acquire` and `release`."""

    def __init__(
        self,
        backend: SandboxBackend,
        *,
        size: int = 32,
        max_open: int = 512,
        max_creating: int = 4,
        max_deleting: int = 8,
        max_memory_bytes: float = float("inf"),
        max_ready_s: float = 600.0,
        acquire_timeout_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = backend
        self._size = size
        self._max_ready_s = max_ready_s
        self._acquire_timeout_s = acquire_timeout_s
        self._clock = clock
        self._permits = Permits(max_boxes=max_open, max_memory_bytes=max_memory_bytes)
        self._slots = Permits(max_boxes=max_open, max_memory_bytes=max_memory_bytes)
        self._creating = asyncio.Semaphore(max_creating)
        self._deleting = asyncio.Semaphore(max_deleting)
        self._ready: dict[str, deque[_ReadyBox]] = {}
        self._wanted: dict[str, tuple[SandboxSpec, int]] = {}
        self._leased: dict[str, Sandbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._warming: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._is_closed = False

    # leases

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        (box,) = await self.acquire_many([spec])
        return box

    async def acquire_many(self, specs: Sequence[SandboxSpec]) -> list[Sandbox]:
        """A box for each spec, all of them or an error; give each back with `release`."""
        if self._is_closed:
            raise SandboxError("the pool is closed")
        for spec in specs:  # what that takes is no wait for others' boxes
            await self.backend.prepare(spec)
        started = self._clock()
        try:
            async with asyncio.timeout(self._acquire_timeout_s):
                await self._permits.take(specs)
                boxes = await self._obtain_all(specs)
        except TimeoutError as e:
            raise SandboxError(
                f"{len(specs)} boxes could not be had within {self._acquire_timeout_s:.0f} s: "
                f"{self._permits.num_boxes} are leased, {self._permits.num_waiting} waited for"
            ) from e
        self._seconds["wait"] += self._clock() - started
        return boxes

    async def _obtain_all(self, specs: Sequence[SandboxSpec]) -> list[Sandbox]:
        tasks = [asyncio.create_task(self._obtain(spec)) for spec in specs]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task, spec in zip(tasks, specs, strict=True):
                if task.cancelled() or task.exception():
                    self._permits.give_back(spec)
                else:
                    self.release(task.result())
            raise
        return [task.result() for task in tasks]

    async def _obtain(self, spec: SandboxSpec) -> Sandbox:
        box = await self._take_ready(spec.pool_key)
        self._counts["warm_hits" if box else "cold_misses"] += 1
        if box is None:
            if not self._slots.take_now(spec):
                self._evict_one()
                await self._slots.take([spec])
            box = await self._create(spec)
        else:
            try:
                await box.upload(spec.files)
            except BaseException:
                self._delete_later(box)
                raise
        self._leased[box.sandbox_id] = box
        self._fill()
        return box

    def release(self, box: Sandbox) -> None:
        """Give a box back. It is deleted in the background."""
        if self._leased.pop(box.sandbox_id, None) is not None:  # else the pool was closed
            self._permits.give_back(box.spec)
            self._delete_later(box)

    @asynccontextmanager
    async def lease(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        box = await self.acquire(spec)
        try:
            yield box
        finally:
            self.release(box)

    # ready boxes

    def prewarm(self, upcoming: Iterable[SandboxSpec]) -> None:
        """Keep boxes ready for these specs, the first `size` of them; replaces earlier wishes."""
        self._wanted.clear()
        for spec in list(upcoming)[: self._size]:
            bare, count = self._wanted.get(spec.pool_key, (replace(spec, files={}), 0))
            self._wanted[spec.pool_key] = (bare, count + 1)
        for key in self._ready.keys() - self._wanted.keys():
            while self._ready[key]:
                self._drop(self._ready[key].popleft().box, "evicted")
        self._fill()

    def _fill(self) -> None:
        """Start what is missing, as far as it keeps nobody waiting."""
        for key, (spec, count) in self._wanted.items():
            missing = count - len(self._ready.get(key, ())) - self._warming[key]
            for _ in range(missing):
                if self._is_closed or not self._slots.take_now(spec):
                    return
                self._warming[key] += 1
                self._own(self._warm(key, spec))

    async def _warm(self, key: str, spec: SandboxSpec) -> None:
        try:
            box = await self._create(spec)
        except SandboxError:
            log.warning(
                "could not make a box ahead of time; none like it is kept ready", exc_info=True
            )
            self._wanted.pop(key, None)
            return
        finally:
            self._warming[key] -= 1
        if self._is_closed or key not in self._wanted or self._slots.num_waiting:
            self._drop(box, "evicted")
        else:
            ready = _ReadyBox(box, self._clock() + self._max_ready_s)
            self._ready.setdefault(key, deque()).append(ready)

    async def _take_ready(self, key: str) -> Sandbox | None:
        ready = self._ready.get(key)
        while ready:
            box, expires = ready.popleft()
            try:
                is_good = self._clock() < expires and await box.alive()
            except BaseException:
                self._delete_later(box)
                raise
            if is_good:
                return box
            self._drop(box, "died_ready")
        return None

    def _evict_one(self) -> None:
        for ready in self._ready.values():
            if ready:
                self._drop(ready.popleft().box, "evicted")
                return

    def _drop(self, box: Sandbox, count: str) -> None:
        self._counts[count] += 1
        self._delete_later(box)

    # life and death

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        """Into a slot that is held already, and freed again if this fails."""
        try:
            async with self._creating:
                started = self._clock()
                self._counts["creating"] += 1
                try:
                    box = await self.backend.create(spec)
                finally:
                    self._counts["creating"] -= 1
        except BaseException as e:
            self._counts["create_failures"] += isinstance(e, SandboxError)
            self._slots.give_back(spec)
            raise
        self._counts["created"] += 1
        self._seconds["create"] += self._clock() - started
        return box

    def _delete_later(self, box: Sandbox) -> None:
        self._own(self._delete(box))

    async def _delete(self, box: Sandbox) -> None:
        self._counts["deleting"] += 1
        try:
            async with self._deleting:
                started = self._clock()
                await box.close()
                self._seconds["delete"] += self._clock() - started
                self._counts["deleted"] += 1
        except SandboxError:
            log.exception("could not delete box %s", box.sandbox_id)
            self._counts["delete_failures"] += 1
        finally:
            self._counts["deleting"] -= 1
            self._slots.give_back(box.spec)
        if self._slots.num_waiting:
            self._evict_one()
        self._fill()

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def metrics(self) -> PoolMetrics:
        return PoolMetrics(
            leased=len(self._leased),
            ready=sum(map(len, self._ready.values())),
            creating=self._counts["creating"],
            deleting=self._counts["deleting"],
            waiting=self._permits.num_waiting,
            warm_hits=self._counts["warm_hits"],
            cold_misses=self._counts["cold_misses"],
            created=self._counts["created"],
            create_failures=self._counts["create_failures"],
            deleted=self._counts["deleted"],
            delete_failures=self._counts["delete_failures"],
            died_ready=self._counts["died_ready"],
            evicted=self._counts["evicted"],
            create_seconds=self._seconds["create"],
            wait_seconds=self._seconds["wait"],
            delete_seconds=self._seconds["delete"],
        )

    async def aclose(self) -> None:
        """Delete every box, leased ones too. The backend stays open; it is the caller's."""
        self._is_closed = True
        self.prewarm(())
        for box in list(self._leased.values()):
            self.release(box)
        while self._tasks:
            await asyncio.wait(self._tasks)
