"""The training workers of a run as one trainer: who takes part in a step, and what became of it.

A step is done by the workers named for it. Each computes a share of the gradient, the shares are
added up between them, and only when all of them have the sum does any of them apply it. So a
replica that dies costs at most the step it dies in: the others forget their shares and do the step
over without it. A worker that was not part of the step before takes the state of one that was.
When the last one turns to other work, its state rests in the object store until somebody trains
again.

Invariants
- All members hold the same weights and the same optimizer state after each step.
- A step is applied at most once, by all of its members that live, or by none.
- The state is lost only with the last member, and then a checkpoint has it: `ProcessLost`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import ray
import structlog
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from agentrl.config.run import RunConfig
from agentrl.runtime.cluster import near_the_driver
from agentrl.runtime.failures import ProcessLost
from agentrl.runtime.link import Actor
from agentrl.runtime.membership import Membership, ReplicaLost
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.reports import GradientShare, TrainedStep, trained_step
from agentrl.train.report import AppliedStep
from agentrl.types import Group

log = structlog.get_logger(__name__)
Result = TypeVar("Result")
Ref = Any
"""Of an object in Ray's store; inside a list it is passed on without being fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOrder:
    """One worker's part in a step."""

    round: int
    """The same for all who are ordered together; a step that is done over has another. Counted from
    1 on through all of a launch."""
    membership: Membership
    state: Sequence[Ref] = ()
    """One reference to the state of the others, for one that was not part of the step before."""


class TrainerGroup:
    """`replicas` in its methods are workers in the training role, by worker id."""

    def __init__(self, config: RunConfig, store: Actor, checkpoints: Path) -> None:
        self._config = config
        self._store = store
        self._checkpoints = checkpoints
        self._members: dict[str, Actor] = {}
        """Those that hold the state after the newest step."""
        self._memberships: dict[str, Membership] = {}
        """Of the last step; the same members go on meeting there."""
        self._resting: list[Ref] = []
        """The state, while nobody trains, or while somebody takes it over in a step."""
        self._round = 0
        """Of the newest orders."""
        self._saving: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Of each member: it may not drop its state while it saves that, and what it saves with
        it can be large, and reach it after the order to drop."""

    def found(self, replicas: Mapping[str, Actor]) -> None:
        """The run begins, or goes on, with the state that these hold alike."""
        self._members, self._memberships, self._resting = dict(replicas), {}, []

    async def saved(self, worker_id: str) -> None:
        """Returns when the worker saves no checkpoint."""
        async with self._saving[worker_id]:
            pass

    async def leave(self, worker_id: str) -> None:
        """A worker turns to other work, between two steps, and has not dropped its state yet.

        Raises `ProcessLost` when it was the last with the state and dies before that rests.
        """
        async with self._saving[worker_id]:
            actor = self._members.get(worker_id)
            if actor is not None and len(self._members) == 1:
                is_there, state = actor.rest.remote()
                try:
                    await is_there
                except RayActorError:
                    return self.lost(worker_id)
                self._resting = [state]
                # the worker's node may go with it, and this one stays
                await asyncio.to_thread(ray.wait, [state], fetch_local=True)
            self._forget(worker_id)

    def lost(self, worker_id: str) -> None:
        """A worker is dead. Raises `ProcessLost` when it was the last with the state."""
        self._forget(worker_id)
        self._check_state()

    async def train(
        self, groups: Sequence[Group], replicas: Mapping[str, Actor]
    ) -> TrainedStep | None:
        """One optimizer step by these workers, or by those of them that live to its end.

        None when all of them were lost, and the state is with somebody else.
        """
        batch = [ray.put(groups)]
        replicas = dict(replicas)
        while True:
            orders = await self._orders(replicas)
            if not orders:
                return None
            shares: list[GradientShare] = await self._living(
                replicas,
                {name: replicas[name].gradients.remote(orders[name], batch) for name in orders},
            )
            if shares and len(shares) == len(orders):
                break
            self._memberships = {}
        self._members, self._resting = replicas, []
        has_samples = shares[0].num_samples > 0
        applied: list[AppliedStep] = await self._living(
            self._members,
            {name: actor.apply.remote(has_samples) for name, actor in replicas.items()},
        )
        self._check_state()
        return trained_step(shares, applied[0])

    async def publish(self, version: int) -> None:
        """Put the weights of the newest step into the parameter store, before anybody leaves.

        They belong to this process, not to the worker that made them, and outlive that one.
        """
        while True:
            name, actor = self._any_member()
            is_there, weights = actor.weights.remote()
            try:
                await is_there
            except RayActorError:
                self.lost(name)
            else:
                await self._store.publish.remote(version, [weights])
                return

    async def checkpoint(self, progress: RunProgress) -> None:
        """By a member, or from the state that rests."""
        while self._members:
            name, actor = self._any_member()
            async with self._saving[name]:
                if not self._is_member(name, actor):
                    continue
                try:
                    await actor.checkpoint.remote(progress, self._checkpoints)
                    return
                except RayActorError:
                    self.lost(name)
        save = _save_resting.options(scheduling_strategy=near_the_driver(if_it_stays=True))
        try:
            await save.remote(self._config, self._resting, progress, self._checkpoints)
        except RayTaskError as error:
            if isinstance(error.cause, ObjectLostError):
                self._resting = []
                self._check_state()
            raise

    # --------------------------------------------------------------------------------- parts

    async def _orders(self, replicas: dict[str, Actor]) -> dict[str, StepOrder]:
        """Memberships for all, and the state for those that are new. The dead are taken out."""
        self._check_state()
        self._round += 1
        while self._memberships.keys() != replicas.keys():
            try:
                self._memberships = await self._assign(replicas)
            except RayActorError:
                self._bury(next(iter(replicas)), replicas)
                self._check_state()
        known = {name for name in replicas if self._is_member(name, replicas[name])}
        if known != replicas.keys() and self._members:
            # kept until the step is applied: its holder may die once it has handed it on
            self._resting = [next(iter(self._members.values())).snapshot.remote()]
        return {
            name: StepOrder(
                round=self._round,
                membership=membership,
                state=() if name in known else self._resting,
            )
            for name, membership in self._memberships.items()
        }

    async def _assign(self, replicas: Mapping[str, Actor]) -> dict[str, Membership]:
        """The first one hosts."""
        names = list(replicas)
        if len(names) <= 1:
            return {name: Membership(rank=0, size=1) for name in names}
        meeting = await replicas[names[0]].host_meeting.remote(len(names))
        return {
            name: Membership(rank=rank, size=len(names), host=meeting.host, port=meeting.port)
            for rank, name in enumerate(names)
        }

    async def _living(
        self, replicas: dict[str, Actor], work: Mapping[str, Awaitable[Result]]
    ) -> list[Result]:
        """The results of those that live; the dead are taken out of `replicas`.

        One that failed only because another was lost has no result, and stays.
        """
        names = list(work)
        calls = [asyncio.ensure_future(call) for call in work.values()]
        for call in calls:
            call.add_done_callback(lambda done: self._call_off_after(done, replicas))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        results = []
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, RayActorError):
                self._bury(name, replicas)
            elif not isinstance(outcome, BaseException):
                results.append(outcome)
            elif not is_of_others(outcome):
                raise outcome
            elif not self._members and isinstance(outcome.cause, ObjectLostError | RayActorError):
                self._resting = []
                self._check_state()
        return results

    def _call_off_after(self, done: asyncio.Future[Result], replicas: Mapping[str, Actor]) -> None:
        """Who has not met the one that died or failed would wait for it in vain."""
        if not done.cancelled() and done.exception() is not None:
            for actor in replicas.values():
                actor.call_off.remote(self._round)

    def _any_member(self) -> tuple[str, Actor]:
        self._check_state()
        return next(iter(self._members.items()))

    def _is_member(self, name: str, actor: Actor) -> bool:
        """Another process under the same name has nothing."""
        return bool(self._members.get(name) == actor)

    def _bury(self, name: str, replicas: dict[str, Actor]) -> None:
        log.warning("a training worker was lost in a step", worker=name)
        replicas.pop(name, None)
        self._forget(name)

    def _forget(self, name: str) -> None:
        if self._members.pop(name, None) is not None or name in self._memberships:
            self._memberships = {}

    def _check_state(self) -> None:
        if not (self._members or self._resting):
            raise ProcessLost("the training worker was lost, and with it the newest state")


def is_of_others(error: BaseException) -> TypeGuard[RayTaskError]:
    """It failed because another one was lost, and can do the step over."""
    of_others = ReplicaLost | RayActorError | ObjectLostError
    return isinstance(error, RayTaskError) and isinstance(error.cause, of_others)


@ray.remote(num_cpus=0)
def _save_resting(
    config: RunConfig, state: Sequence[Ref], progress: RunProgress, folder: Path
) -> None:
    """Save the state of a run in which nobody trains now."""
    from agentrl.runtime.training import TrainingContext

    (snapshot,) = ray.get(list(state))
    context = TrainingContext.start(config, None)
    context.take_over(snapshot)
    context.save(progress, folder)
