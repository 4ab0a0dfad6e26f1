"""The processes of a run: made, given their roles, watched, replaced and ended.

Every worker trains, serves rollout or judges (GenRM), and may change that while the run goes on;
during the supervised warm-up all but the judges train the policy. A worker that dies is replaced,
while its turns go on elsewhere, or wait, with the tokens they have. What only a checkpoint can
bring back is the state of the last training worker: its loss is `ProcessLost` for whoever started
the run.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import ray
import structlog
from ray.exceptions import ActorUnschedulableError, RayActorError, RayTaskError

from agentrl.config.fleet import fewest_workers, num_genrm_workers, rollout_buckets
from agentrl.config.judge import GenRMJudge
from agentrl.config.run import RunConfig
from agentrl.engine.engine import UnfitWeights
from agentrl.engine.swap_cost import SwapCost
from agentrl.record.journal_writer import JournalWriter
from agentrl.record.layout import RunLayout
from agentrl.registry import EnvRef
from agentrl.runtime.breakages import Breakages
from agentrl.runtime.broker_link import BrokerLink, tenant_of
from agentrl.runtime.cluster import in_turn, near_the_driver
from agentrl.runtime.departures import Departures
from agentrl.runtime.dispatch import EngineAddress
from agentrl.runtime.display import WarmupProgress
from agentrl.runtime.drains import Drains
from agentrl.runtime.failures import ProcessLost, in_short, message_of
from agentrl.runtime.fleet_warmup import teach_judge, warm_up
from agentrl.runtime.handoffs import Handoffs
from agentrl.runtime.keeper import CoordinatorKeeper
from agentrl.runtime.lifeline import end_when_broken, outlive, patiently
from agentrl.runtime.link import Actor
from agentrl.runtime.parameters import ParameterStore
from agentrl.runtime.process_logs import ProcessLogs
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.reports import TrainedStep, num_tokens
from agentrl.runtime.runner import Runner
from agentrl.runtime.runners import introduce
from agentrl.runtime.sharing import SharedSeats
from agentrl.runtime.staff import GONE, Staff, WorkerSeat
from agentrl.runtime.trainers import TrainerGroup
from agentrl.types import Group
from scheduler.decisions import Decision, StartStep
from scheduler.events import BatchReady, Event, Role, StepStarted, WorkerLost

log = structlog.get_logger(__name__)
RETRY_S = 0.5
"""Before another process starts in a seat whose last one did not get that far."""


class Fleet:
    """`start()` first, then roles; `supervise()` must run while it is used."""

    def __init__(
        self,
        *,
        config: RunConfig,
        layout: RunLayout,
        coordinator: CoordinatorKeeper,
        drains: Drains,
        tell: Callable[[Event], None],
        announce: Callable[[WorkerSeat], Awaitable[None]],
        waiting: Callable[[str], AbstractContextManager[None]],
        progressed: Callable[[], None],
        on_replaced: Callable[[], None],
        breakages: Breakages,
        logs: ProcessLogs,
    ) -> None:
        """`announce` tells the runners of an engine; `waiting` and `progressed` tell the watchdog;
        `on_replaced` hears of every process that is started in the place of one that has ended, and
        `breakages` of every engine that broke;
        `logs` follows all of them."""
        self._config = config
        self._layout = layout
        self._coordinator = coordinator
        self._tell = tell
        self._breakages = breakages
        self._logs = logs
        self._waiting = waiting
        self._progressed = progressed
        self._secret = secrets.token_urlsafe(32)
        store = ray.remote(ParameterStore)
        self._store = store.options(num_cpus=0, scheduling_strategy=near_the_driver()).remote()
        self._staff = Staff(
            config=config,
            layout=layout,
            store=self._store,
            secret=self._secret,
            tell=tell,
            announce=announce,
            waiting=waiting,
            on_replaced=on_replaced,
            follow=logs.follow,
        )
        self._trainers = TrainerGroup(config, self._store, layout.checkpoints)
        self._starts: asyncio.Queue[StartStep] = asyncio.Queue()
        self._seats: dict[str, WorkerSeat] = {}
        self._handoffs = Handoffs(
            seats=self._seats, staff=self._staff, trainers=self._trainers, tell=tell
        )
        self._boundary = asyncio.Event()
        self._departures = Departures(
            trainers=self._trainers, drains=drains, tell=tell, boundary=self._boundary
        )
        self._runner_numbers = count()
        self._sharing: SharedSeats | None = None
        if config.runtime.share is not None:
            broker = BrokerLink(tenant_of(config, config.runtime.share), self._store, logs)
            self._sharing = SharedSeats(
                broker=broker,
                at_least=fewest_workers(config),
                departures=self._departures,
                drains=drains,
                waiting=waiting,
                progressed=progressed,
            )

    async def start(self) -> None:
        """Start the workers, and wait until they run."""
        runtime = self._config.runtime
        buckets = rollout_buckets(self._config)
        single = buckets[0].model_copy(update={"cores": 1})
        posts = [
            *[(Role.TRAINING, single)] * runtime.training_workers,
            *[(Role.ROLLOUT, bucket) for bucket in buckets for _ in range(bucket.workers)],
            *[(Role.GENRM, single)] * num_genrm_workers(self._config),
        ]
        is_local = runtime.ray_address is None
        for seat in self._staff.seats(posts, pin=runtime.pin_cores and is_local):
            self._seats[seat.worker_id] = seat
        if self._sharing is not None:
            await self._sharing.fill_first(list(self._seats.values()))
        for seat in self._present():
            self._staff.start_process(seat)
        starting = asyncio.gather(
            self._coordinator.ready(),
            *(
                self._staff.persist(seat, lambda seat: seat.actor.ready.remote())
                for seat in self._present()
            ),
        )
        asked = self._staff.asked_of_ray([seat.bucket for seat in self._present()])
        await self._staff.within_start(f"the coordinator and the workers ({asked})", starting)
        await asyncio.gather(*(self._staff.check_folder(seat) for seat in self._present()))

    async def start_runner(self, env: EnvRef, name: str, journal: JournalWriter) -> Actor:
        """A runner that knows every engine there is at the moment in which this returns."""
        makings = (self._config, env, name, self._coordinator.address, self._secret, journal)
        while True:
            place = in_turn(next(self._runner_numbers))
            made = ray.remote(Runner).options(num_cpus=0, scheduling_strategy=place)
            runner: Actor = made.remote(*makings)
            self._logs.follow(name, runner)
            try:
                await self._make_ready(name, runner)
                return runner
            except ActorUnschedulableError:
                log.info("a runner's node leaves, since a moment ago", runner=name)
            except (RayActorError, RayTaskError, ProcessLost):
                ray.kill(runner)  # it may live, and nobody will ask for it again
                raise

    async def _make_ready(self, name: str, runner: Actor) -> None:
        await self._staff.within_start(name, runner.ready.remote())
        with self._waiting(f"the first boxes of {name}, whose image may have to be pulled"):
            await patiently(
                name,
                runner,
                runner.make_boxes.remote(),
                silence_timeout_s=self._config.runtime.silence_timeout_s,
                progressed=self._progressed,
            )
        await self._staff.within_start(name, introduce(runner, self._addresses))

    def _addresses(self) -> list[EngineAddress]:
        return [seat.address for seat in self._seats.values() if seat.url]

    def processes(self) -> dict[str, Actor]:
        """The workers by name; a slot that was just granted has none yet."""
        return {s.worker_id: s.actor for s in self._present() if s.actor is not None}

    # --------------------------------------------------------------------------------- roles

    async def warm_up(self, on_progress: Callable[[WarmupProgress], None]) -> None:
        """All but the judges train on demonstrations, and end with the same weights."""
        replicas = [seat.actor for seat in self._present() if seat.role is not Role.GENRM]
        await warm_up(replicas, self._env(self._config.warmup.env_options), on_progress)

    async def teach_judge(self, on_progress: Callable[[WarmupProgress], None]) -> None:
        """A worker learns from the environment's rule and leaves its weights in the run: a judge,
        or one that may become one."""
        candidates = self._in_role(Role.GENRM) or self._present()
        assert isinstance(self._config.judge, GenRMJudge), "only such a judge is taught"
        env = self._env(self._config.judge.warmup.env_options)
        await teach_judge(candidates[-1].actor, env, self._layout.judge, on_progress)

    def _env(self, options: Mapping[str, Any]) -> EnvRef:
        """Named here, where the user's own files are looked for: workers may run elsewhere."""
        env = self._config.env
        return EnvRef(name=env.name, options={**env.options, **options})

    async def take_roles(self, step: int, *, checkpoint: Path | None, is_warm: bool) -> None:
        """Training workers hold the state of `step`; the others serve its weights, or judge."""
        training = self._in_role(Role.TRAINING)
        if not is_warm:
            await asyncio.gather(
                *(
                    self._staff.persist(
                        seat, lambda seat: seat.actor.become_training.remote(checkpoint)
                    )
                    for seat in training
                )
            )
        self._trainers.found({seat.worker_id: seat.actor for seat in training})
        await self._trainers.publish(step)
        self._boundary.set()
        serving = [seat for seat in self._present() if seat.role is not Role.TRAINING]
        await asyncio.gather(
            *(self._staff.report(seat) for seat in training),
            *(self._staff.persist(seat, self._staff.put_to_work) for seat in serving),
        )

    def on_decision(self, decision: Decision) -> None:
        """Of those that are about workers."""
        if isinstance(decision, StartStep):
            self._starts.put_nowait(decision)
        else:
            self._handoffs.on_decision(decision)

    # --------------------------------------------------------------------------------- verbs

    async def train(self, step: int, groups: Sequence[Group]) -> TrainedStep:
        """One optimizer step, by the workers that the scheduler names for it."""
        trained = None
        while trained is None:
            self._tell(BatchReady(step=step, tokens=num_tokens(groups)))
            self._boundary.set()
            start = await self._starts.get()
            self._boundary.clear()
            self._tell(StepStarted(step=step))
            trained = await self._trainers.train(groups, self._replicas(start))
        return trained

    def _replicas(self, start: StartStep) -> dict[str, Actor]:
        """Without those that were lost since they were named, or are leaving; others may sit in
        their seats."""
        named = (self._seats[name] for name in start.workers)
        return {seat.worker_id: seat.actor for seat in named if seat.can_train}

    async def publish(self, version: int) -> None:
        """Returns when every serving worker has the weights; a lost one gets them on its return."""
        await self._trainers.publish(version)
        self._breakages.progressed()
        self._boundary.set()
        serving = self._in_role(Role.ROLLOUT)
        await asyncio.gather(*(self._staff.load(seat, version) for seat in serving))

    async def take_swap_costs(self) -> list[SwapCost]:
        """What swaps of weights have cost since the last call: one for each worker that serves."""
        serving = [seat for seat in self._in_role(Role.ROLLOUT) if seat.url]
        asked = (seat.actor.take_swap_cost.remote() for seat in serving)
        costs = await asyncio.gather(*asked, return_exceptions=True)
        return [cost for cost in costs if isinstance(cost, SwapCost)]

    async def checkpoint(self, progress: RunProgress) -> None:
        progress.learned = await self._coordinator.learned()
        await self._trainers.checkpoint(progress)

    async def close(self) -> None:
        """Let engines and the log end well; processes themselves end with the cluster."""
        leaving = [worker.leave_role.remote() for worker in self.processes().values()]
        if self._sharing is not None:
            leaving.append(self._sharing.close())
        await asyncio.gather(*leaving, self._coordinator.close(), return_exceptions=True)

    # --------------------------------------------------------------------------- supervision

    async def supervise(self) -> NoReturn:
        """Carry out shifts and replace workers that die; raise `ProcessLost` where that cannot be."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._handoffs.run())
            if self._sharing is not None:
                tasks.create_task(self._sharing.run())
            for seat in self._seats.values():
                tasks.create_task(self._keep(seat))
        raise AssertionError("all loops are endless")

    async def _keep(self, seat: WorkerSeat) -> NoReturn:
        while True:
            if seat.actor is not None:
                await self._until_gone(seat)
            seat.is_ready, seat.url = False, ""
            self._trainers.lost(seat.worker_id)
            is_ordered = self._handoffs.is_restarting(seat.worker_id)
            if seat.is_leaving or not is_ordered:
                self._tell(WorkerLost(worker_id=seat.worker_id, generation=seat.generation))
                seat.generation += 1
            await seat.is_wanted.wait()
            seat.is_leaving = False
            log.info("another worker is started", worker=seat.worker_id)
            self._staff.replace_process(seat)
            try:
                await self._staff.placed(seat)
                await self._staff.put_to_work(seat)
            except (*GONE, RayTaskError) as error:
                ray.kill(seat.actor)  # so that its lifeline fails, if only the line to it broke
                if isinstance(error, RayTaskError):
                    self._judge_start(seat, error)
                await asyncio.sleep(RETRY_S)

    def _judge_start(self, seat: WorkerSeat, error: RayTaskError) -> None:
        """Of a process that lives and could not be put to work: another one may do better, unless
        that is known to be no use."""
        if isinstance(error.cause, UnfitWeights):
            raise error
        log.error("a worker could not start its work", worker=seat.worker_id, exception=str(error))
        self._count_break(seat, in_short(error.cause))

    def _count_break(self, seat: WorkerSeat, reason: str) -> None:
        self._breakages.broke(
            seat.worker_id, (other.worker_id for other in self._in_role(seat.role)), reason
        )

    async def _until_gone(self, seat: WorkerSeat) -> None:
        """Returns when the process in the seat has ended, by itself or after a notice."""
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(self._departures.heed(seat))
            breaking = tasks.create_task(end_when_broken(seat.worker_id, seat.actor))
            try:
                await outlive(
                    seat.worker_id,
                    seat.actor,
                    silence_timeout_s=self._config.runtime.silence_timeout_s,
                )
            except GONE as error:
                log.warning("a worker is gone", worker=seat.worker_id, reason=in_short(error))
                ray.kill(seat.actor)  # where only the line to it broke, it would work on
            leaving.cancel()
            if breaking.done() and (trace := breaking.result()):
                self._count_break(seat, message_of(trace))
            breaking.cancel()

    def _in_role(self, role: Role) -> list[WorkerSeat]:
        return [seat for seat in self._present() if seat.role is role]

    def _present(self) -> list[WorkerSeat]:
        """Those that have a process, or get one at once."""
        return [seat for seat in self._seats.values() if seat.is_wanted.is_set()]

    def lines(self) -> list[Coroutine[Any, Any, NoReturn]]:
        """What must run from before `start()` on."""
        return [] if self._sharing is None else [self._sharing.listen()]
