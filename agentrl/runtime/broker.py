"""One actor in a Ray cluster that lends the cluster's slots to the runs that share it.

It decides nothing itself: `scheduler.slices` does. The broker tells it which slots there are, what
runs want, and which runs are dead, and puts each ruling into the mailbox of the run it concerns.

It belongs to no run. The first one starts it, and it ends by itself when the last one has left.
Should it die, whoever notices starts another, and the runs declare what they hold. It rules on
nothing in its first seconds, so that no slot is given away whose holder has not spoken yet.

Invariants
- A run's slots are free when it says so, or when its lifeline breaks: an actor that Ray ends with
  the run, as it ends the run's workers. Silence alone frees nothing.
- News reaches a run once, whatever answer is lost on the way: it is kept until the run says that it
  has it.
- A slot of a node that is about to be taken away is granted to nobody. Runs that hold one see to
  leaving it by themselves; it is their slot until they have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import ray
import structlog
from ray.exceptions import ActorUnavailableError, RayActorError

from agentrl.runtime.drains import draining_nodes
from agentrl.runtime.link import Actor
from agentrl.runtime.process_logs import LoggingActor
from scheduler.slices import Account, Grant, Ruling, Slices, Slot, TakeBack, Tenant

log = structlog.get_logger(__name__)

NAME = "fleet-broker"
GRACE_S = 20.0
START_S = 120.0
"""For a run to have its workers at work on a slot; its slice begins then at the latest."""
SETTLING_S = 3.0
TICK_S = 1.0
POLL_S = 2.0
RETRY_S = 0.5
"""Before a run whose lifeline broke for a moment is asked again."""
LINGER_S = 10.0
"""Without a run, before it ends."""


class SlotPlace(NamedTuple):
    """What a slot's name says."""

    node_id: str
    gpu: int | None
    """None: a core, any of the node's."""

    @classmethod
    def of(cls, slot: Slot) -> SlotPlace:
        node_id, _, unit = slot.partition("/")
        return cls(node_id, int(unit[3:]) if unit.startswith("gpu") else None)


class Withdrawn(NamedTuple):
    """The slot is not the run's any more: its machine is gone, or another run has it."""

    slot: Slot


News = Ruling | Withdrawn


class _Mailbox:
    """News for one run, numbered after what it had received from others."""

    def __init__(self, received: int) -> None:
        self._received = received
        self._kept: list[News] = []
        self._is_new = asyncio.Event()

    def put(self, news: News) -> None:
        self._kept.append(news)
        self._is_new.set()

    def after(self, received: int) -> list[News]:
        """The run has all up to this one; what came since."""
        if received > self._received:  # not so when the caller has given up waiting
            del self._kept[: received - self._received]
            self._received = received
        return list(self._kept)

    async def wait(self, received: int) -> list[News]:
        """What comes next; empty when nothing does for a while."""
        if not self.after(received):
            self._is_new.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._is_new.wait()
        return self.after(received)


class FleetBroker(LoggingActor):
    """Ray actor, detached. `job` in its methods is the calling run."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._slices = Slices(grace_s=grace_s, start_s=START_S)
        self._draining: Collection[str] = ()
        """Nodes."""
        self._looking = asyncio.Lock()
        """One look after another: what an earlier one saw may not undo what a later one did."""
        self._closing: frozenset[Slot] = frozenset()
        self._mail: dict[str, _Mailbox] = {}
        self._lifelines: dict[str, asyncio.Task[None]] = {}
        self._started_t = self._alone_since_t = time.monotonic()
        self._overdue: set[TakeBack] = set()
        self._ticking: asyncio.Task[None] | None = None

    async def join(
        self, tenant: Tenant, lifeline: Actor, held: Sequence[Slot], received: int
    ) -> None:
        """A run begins, or goes on with a new broker or after something may have been lost.

        `held` and `received`: what the run holds by the news that it has received, up to this
        number. `lifeline` has a method of that name.
        """
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick())
        await self._look_at_nodes()
        self._slices.add_slots(time.monotonic(), self._closing.intersection(held))
        mail = self._mail.setdefault(tenant.job, _Mailbox(received))
        on_its_way = [n.slot for n in mail.after(received) if isinstance(n, Grant)]
        for slot in self._slices.join(time.monotonic(), tenant, held=[*held, *on_its_way]):
            mail.put(Withdrawn(slot))
        if tenant.job not in self._lifelines:
            watching = asyncio.create_task(self._watch(tenant.job, lifeline))
            self._lifelines[tenant.job] = watching
        self._rule()

    async def listen(self, job: str, received: int) -> list[News] | None:
        """The next news for the caller; empty when there were none for a while, and None when it
        has to join (again) first."""
        return await self._mail[job].wait(received) if job in self._mail else None

    async def begun(self, job: str) -> None:
        """The run works on all slots that it holds."""
        if job in self._mail:
            self._slices.begun(time.monotonic(), job)

    async def give_back(self, job: str, slot: Slot) -> None:
        """The weights that the run had there stay in the node's memory while nothing newer comes."""
        await self._look_at_nodes()  # it may be given back because its machine goes
        if job in self._mail:
            self._slices.give_back(time.monotonic(), job, slot, is_parked=True)
            self._rule()

    async def leave(self, job: str) -> None:
        """The run has let go of all it held."""
        if job in self._mail:
            self._forget(job)
            self._lifelines.pop(job).cancel()

    async def accounts(self) -> list[Account]:
        """How every run fares."""
        return self._slices.accounts(time.monotonic())

    async def retire(self) -> None:
        """End, unless a run has come in the meantime."""
        if not self._mail:
            ray.actor.exit_actor()

    async def move(self) -> None:
        """End, to be started again on a node that stays: this one would wait for it to go."""
        ray.actor.exit_actor()

    # ---------------------------------------------------------------------------------- parts

    async def _tick(self) -> None:
        try:
            await self._tick_on()
        except Exception:
            log.exception("the broker cannot go on; another one takes over")
            await asyncio.sleep(TICK_S)  # for the runs to hear of it
            ray.get_runtime_context().current_actor.move.remote()

    async def _tick_on(self) -> NoReturn:
        while True:
            await asyncio.sleep(TICK_S)
            await self._look_at_nodes()
            self._rule()
            self._warn_of_the_overdue()
            context = ray.get_runtime_context()
            if context.get_node_id() in self._draining:
                context.current_actor.move.remote()
            if self._mail:
                self._alone_since_t = time.monotonic()
            elif time.monotonic() - self._alone_since_t > LINGER_S:
                context.current_actor.retire.remote()

    def _rule(self) -> None:
        now = time.monotonic()
        held = {slot for account in self._slices.accounts(now) for slot in account.held}
        self._slices.remove_slots(now, self._closing - held)
        if now - self._started_t < SETTLING_S:
            return
        for ruling in self._slices.decide(now):
            self._mail[ruling.job].put(ruling)
            log.info(
                "asked for" if isinstance(ruling, TakeBack) else "granted",
                job=ruling.job,
                slot=ruling.slot,
            )

    def _warn_of_the_overdue(self) -> None:
        overdue = set(self._slices.overdue(time.monotonic()))
        for asked in overdue - self._overdue:
            log.warning("a slot was not given back in time", job=asked.job, slot=asked.slot)
        self._overdue = overdue

    async def _look_at_nodes(self) -> None:
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        try:
            slots = slots_of(await asyncio.to_thread(ray.nodes))
            self._draining = await asyncio.to_thread(draining_nodes)
        except Exception as error:  # noqa: BLE001 - Ray raises of many kinds when it is in trouble
            log.warning("the cluster did not say which nodes it has", error=repr(error))
            return  # they count as they were until it does
        now = time.monotonic()
        gone = self._slices.slots - slots
        if gone:
            for account in self._slices.accounts(now):
                for slot in gone.intersection(account.held):
                    self._mail[account.tenant.job].put(Withdrawn(slot))
            self._slices.remove_slots(now, gone)
        self._closing = frozenset(s for s in slots if SlotPlace.of(s).node_id in self._draining)
        self._slices.add_slots(now, slots - self._closing)

    async def _watch(self, job: str, lifeline: Actor) -> None:
        while True:
            try:
                await lifeline.lifeline.remote()
            except ActorUnavailableError:
                await asyncio.sleep(RETRY_S)  # it may live, and work on its slots
            except RayActorError:
                break
        log.warning("a run is dead; its slots are free", job=job)
        del self._lifelines[job]
        self._forget(job)

    def _forget(self, job: str) -> None:
        self._slices.leave(time.monotonic(), job)
        del self._mail[job]
        self._rule()


def slots_of(nodes: Sequence[dict[str, Any]]) -> frozenset[Slot]:
    """A slot for each accelerator of the cluster, or for each core where there is none."""
    living = [node for node in nodes if node["Alive"]]
    kind = "GPU" if any(node["Resources"].get("GPU") for node in living) else "CPU"
    return frozenset(
        f"{node['NodeID']}/{kind.lower()}{number}"
        for node in living
        for number in range(int(node["Resources"].get(kind, 0)))
    )


def open_broker() -> Actor:
    """The broker of this cluster, started if there is none."""
    broker: Actor = (
        ray.remote(FleetBroker)
        .options(name=NAME, get_if_exists=True, lifetime="detached", num_cpus=0)
        .remote()
    )
    return broker
