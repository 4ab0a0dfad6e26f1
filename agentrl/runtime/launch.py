"""One launch of a run: its processes and parts, made, connected and let go of.

Wiring only: it holds no logic of its own beside what its parts tell each other. It ends with the
run's summary, or with the error of whatever broke first, after everything was given the time to end
well.
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from pathlib import Path

import ray
import structlog

from agentrl.config.dump import dump_config, masked
from agentrl.config.judge import GenRMJudge
from agentrl.config.run import RunConfig
from agentrl.env import tasks_of
from agentrl.record.layout import RunLayout
from agentrl.record.trackers import open_trackers
from agentrl.record.writer import RunWriter
from agentrl.registry import EnvRef
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.groups import GroupBook
from agentrl.runtime.beside import beside
from agentrl.runtime.breakages import Breakages
from agentrl.runtime.collector import Collector
from agentrl.runtime.costs import Costs
from agentrl.runtime.display import Display, Summary, WarmupProgress
from agentrl.runtime.drains import Drains
from agentrl.runtime.experience import make_experience
from agentrl.runtime.failures import StopRequested
from agentrl.runtime.fleet import Fleet
from agentrl.runtime.journals import Journals, Tally
from agentrl.runtime.keeper import CoordinatorKeeper
from agentrl.runtime.link import Actor, CoordinatorLink
from agentrl.runtime.loop import TrainingLoop
from agentrl.runtime.metrics import Scrape
from agentrl.runtime.metrics_endpoint import MetricsEndpoint
from agentrl.runtime.outages import LONGEST_PAUSE_S, OutageGate
from agentrl.runtime.process_logs import ProcessLogs
from agentrl.runtime.progress import NO_CHECKPOINT, RunProgress, Standing
from agentrl.runtime.recorder import Recorder
from agentrl.runtime.reports import refuse_failing_env, since_batch
from agentrl.runtime.runners import RunnerPool
from agentrl.runtime.scheduling import (
    make_scheduler,
    needs_costs,
    refuse_unfit_policies,
    tick_s,
)
from agentrl.runtime.staff import WorkerSeat
from agentrl.runtime.status import Inquiry, waits_of
from agentrl.runtime.tasks import TaskSource
from agentrl.runtime.watchdog import Watchdog
from agentrl.train.checkpoint_folders import latest_checkpoint, read_header
from agentrl.types import Outcome, Trajectory
from scheduler.decisions import Admit, Decision
from scheduler.events import Restored

log = structlog.get_logger(__name__)

CLOSING_TIMEOUT_S = 20.0


class Launch:
    """The processes and parts of a run, from its start or a checkpoint until it ends or breaks."""

    def __init__(
        self,
        config: RunConfig,
        layout: RunLayout,
        display: Display,
        stop: asyncio.Event,
        endpoint: MetricsEndpoint,
    ) -> None:
        self._config = config
        self._layout = layout
        self._display = display
        self._stop = stop
        self._endpoint = endpoint
        self._started_s = time.monotonic()
        self._env = EnvRef(name=config.env.name, options=config.env.options)
        self._env_class = self._env.load()
        self._checkpoint = latest_checkpoint(layout.checkpoints)
        self.progress = (
            RunProgress.from_json(read_header(self._checkpoint).progress)
            if self._checkpoint
            else RunProgress()
        )
        self._watchdog = Watchdog(
            stall_timeout_s=config.runtime.stall_timeout_s,
            clock=time.monotonic,
            details=self._waits,
        )

    async def run(self) -> Summary:
        config = self._config
        refuse_unfit_policies(config)
        costs = None
        if needs_costs(config):
            if not self._layout.costs.exists():
                self._display.phase("measuring what work costs here")
            costs = await asyncio.to_thread(_costs, config, self._layout.costs)
        self._logs = ProcessLogs()
        coordinator = CoordinatorKeeper(
            make_scheduler(config, costs),
            self._layout,
            tick_s=tick_s(config),
            silence_timeout_s=config.runtime.silence_timeout_s,
            start_timeout_s=config.runtime.start_timeout_s,
            follow=self._logs.follow,
            on_lost=lambda: self._endpoint.metrics.restarted("coordinator"),
        )
        self._link = CoordinatorLink(coordinator.address, "driver", self._on_decision)
        if self.progress.learned:
            self._link.tell(Restored(learned=self.progress.learned))
        drains = Drains(
            own_node=ray.get_runtime_context().get_node_id(),
            grace_s=config.runtime.preemption_grace_s,
        )
        self._runners = RunnerPool(
            start_runner=self._start_runner,
            num_runners=config.runtime.runners,
            drains=drains,
            on_returned=self._on_returned,
            on_lost=lambda name: self._on_lost(coordinator, name),
            recover=lambda name, lost, error: self._journals.recover(name, lost, error),
            on_decided=lambda group: self._collector.on_decided(group),
            on_journal_failed=lambda lines: self._writer.failed_elsewhere("journal", lines),
            silence_timeout_s=config.runtime.silence_timeout_s,
        )
        self._outages = OutageGate(
            self._runners.submit,
            clock=time.monotonic,
            longest_pause_s=min(LONGEST_PAUSE_S, config.runtime.stall_timeout_s / 10),
        )
        self._collector = self._make_collector()
        self._breakages = Breakages()
        self._fleet = Fleet(
            config=config,
            layout=self._layout,
            coordinator=coordinator,
            drains=drains,
            tell=self._link.tell,
            announce=self._announce,
            waiting=self._watchdog.waiting,
            progressed=self._watchdog.progressed,
            on_replaced=lambda: self._endpoint.metrics.restarted("worker"),
            breakages=self._breakages,
            logs=self._logs,
        )
        self._inquiry = Inquiry(
            coordinator.status, runners=self._runners.processes, workers=self._fleet.processes
        )
        self._recorder = recorder = self._make_recorder()
        self._journals = await self._make_journals()
        self._endpoint.now = self._scrape
        try:
            return await beside(
                self._live(recorder),
                coordinator.run(),
                self._link.run(),
                self._watchdog.watch(),
                self._runners.run(),
                self._outages.run(),
                self._logs.run(),
                drains.watch(),
                self._heed_own_drain(drains),
                *self._fleet.lines(),
            )
        except StopRequested as request:
            self._display.warn(str(request))
            return recorder.summary(self.progress)
        finally:
            self._endpoint.now = None
            await self._close()
            self._journals.close()
            recorder.close()

    async def _live(self, recorder: Recorder) -> Summary:
        """Start the workers, give them their roles, and train."""
        config = self._config
        self._display.phase("starting workers")
        with self._watchdog.waiting("the workers' start"):
            await self._fleet.start()
        is_warm = self._checkpoint is None and config.warmup.steps > 0
        if is_warm:
            self._display.phase("supervised warm-up on demonstrations")
        with self._watchdog.waiting("the warm-up"):
            await self._warm_up(is_warm=is_warm)
        with self._watchdog.waiting("the workers' roles"):
            await self._fleet.take_roles(
                self.progress.step, checkpoint=self._checkpoint, is_warm=is_warm
            )
        self._display.phase("reinforcement")
        loop = TrainingLoop(
            config=config,
            progress=self.progress,
            fleet=self._fleet,
            collector=self._collector,
            experience=make_experience(config, self.progress.experience, self._layout.root),
            recorder=recorder,
            display=self._display,
            watchdog=self._watchdog,
            journals=self._journals,
            tell=self._link.tell,
            eval_tasks=list(islice(tasks_of(self._env_class, "eval"), config.eval.tasks)),
            stop=self._stop,
            clock=time.monotonic,
            started_s=self._started_s - self.progress.wall_s,
        )
        return await beside(loop.run(), self._fleet.supervise())

    async def _warm_up(self, *, is_warm: bool) -> None:
        """The policy, where nothing was trained yet, and beside it a judge that was never taught."""
        async with asyncio.TaskGroup() as group:
            if _must_teach_judge(self._config, self._layout.judge):
                group.create_task(self._fleet.teach_judge(self._on_warmup))
            if is_warm:
                group.create_task(self._fleet.warm_up(self._on_warmup))

    async def _close(self) -> None:
        """Let boxes and engines end well. What cannot answer any more ends with the cluster, and
        keeps nothing else from ending well."""
        for close in (self._runners.close, self._fleet.close):
            try:
                async with asyncio.timeout(CLOSING_TIMEOUT_S):
                    await close()
            except TimeoutError:
                log.warning("some processes did not close in time", timeout_s=CLOSING_TIMEOUT_S)
        await self._logs.fetch_rest()

    # ------------------------------------------------------------------------------- the parts

    def _make_collector(self) -> Collector:
        config = self._config
        return Collector(
            source=TaskSource(
                lambda: tasks_of(self._env_class, "train"),
                seed=config.seed,
                split="train",
                cursor=self.progress.cursor,
                pending=self.progress.pending,
            ),
            new_book=lambda: GroupBook(
                action=config.outcomes.action, max_retries=config.rollout.retries
            ),
            group_size=config.rollout.group_size,
            min_group=config.rollout.min_group,
            refuse=lambda batch: refuse_failing_env(
                batch,
                max_error_fraction=config.outcomes.max_error_fraction,
                min_attempts=config.rollout.group_size * config.train.fresh_groups_per_step,
            ),
            submit=self._submit,
            decide=self._runners.decide,
            tell=self._link.tell,
        )

    def _make_recorder(self) -> Recorder:
        self._writer = RunWriter(
            self._layout.root,
            dump_config(self._config),
            name=self._config.name,
            first_step=self.progress.step + 1,
        )
        return Recorder(
            writer=self._writer,
            trackers=[
                self._endpoint.metrics,
                *open_trackers(
                    self._config.trackers,
                    self._layout.root,
                    masked(self._config.model_dump(mode="json")),
                ),
            ],
            num_steps=self._config.train.steps,
        )

    async def _make_journals(self) -> Journals:
        """With what earlier launches left sorted out; after the writer, which holds the folder."""
        journals = Journals(
            self._layout.journal,
            checkpoint=Standing.of(self.progress) if self._checkpoint else NO_CHECKPOINT,
            is_replayable=self._env_class.replayable,
            settle=self._runners.settle,
            report=self._on_leftovers,
        )
        planned = await asyncio.to_thread(journals.take_over)
        if planned.fates:
            self._display.note(f"left by lost processes, to be {planned}")
        return journals

    async def _start_runner(self, name: str) -> Actor:
        return await self._fleet.start_runner(self._env, name, self._journals.writer_for(name))

    async def _announce(self, seat: WorkerSeat) -> None:
        await self._runners.connect(seat.address)

    async def _waits(self) -> list[str]:
        ended = since_batch(self._collector.since_batch)
        return [*ended, *self._outages.waits(), *waits_of(await self._inquiry.make())]

    async def _scrape(self) -> Scrape:
        return Scrape(
            await self._inquiry.make(),
            oldest_wait_s=self._watchdog.oldest_wait_s,
            record_dropped=self._recorder.dropped,
            held_attempts=self._outages.num_held,
        )

    # -------------------------------------------------------------------------------- callbacks

    def _on_decision(self, decision: Decision) -> None:
        if isinstance(decision, Admit):
            self._collector.admit(decision.num_groups)
        else:
            self._fleet.on_decision(decision)

    def _submit(self, attempt: Attempt) -> None:
        """To a runner, as soon as boxes and engines work, unless its end is known already."""
        past = self._journals.take(attempt)
        if past is None or past.ended is None:
            self._outages.submit(attempt, past)
        else:
            asyncio.get_running_loop().call_soon(self._on_returned, past.ended)

    def _on_leftovers(self, tally: Tally) -> None:
        log.info("attempts left by lost processes", **tally.to_json())
        self._display.note(f"left by lost processes: {tally}")
        self._writer.resumed(tally.to_json())

    def _on_returned(self, trajectory: Trajectory) -> None:
        self._endpoint.metrics.returned(trajectory)
        self._journals.returned(trajectory)
        if trajectory.outcome is not Outcome.INFRA_ERROR:
            self._watchdog.progressed()
            self._breakages.progressed()
        self._outages.ended(trajectory)
        self._collector.on_returned(trajectory)

    async def _heed_own_drain(self, drains: Drains) -> None:
        """What belongs to the driver's machine cannot go elsewhere; a resumed run can."""
        left_s = await drains.of_the_driver()
        self._display.warn(
            f"this machine leaves the cluster in {left_s:.0f} s: finishing what is under way and "
            "saving; `agentrl train --resume` goes on from there on another node"
        )
        self._stop.set()

    async def _on_lost(self, coordinator: CoordinatorKeeper, name: str) -> None:
        self._endpoint.metrics.restarted("runner")
        await coordinator.lost(name)

    def _on_warmup(self, progress: WarmupProgress) -> None:
        if self._stop.is_set():
            raise StopRequested("the warm-up is not saved; a resumed run begins it again")
        self._watchdog.progressed()
        self._display.warmup(progress)


def _must_teach_judge(config: RunConfig, folder: Path) -> bool:
    """Whether the run wants a warm-up of its judge that no launch has brought to its end."""
    judge = config.judge
    return isinstance(judge, GenRMJudge) and judge.warmup.steps > 0 and not folder.exists()


def _costs(config: RunConfig, path: Path) -> Costs:
    """Those in the run folder, or else measured now, in a process of Ray's, and left there."""
    if not path.exists():
        ray.get(_measured.remote(config)).save(path)
    return Costs.load(path)


@ray.remote(num_cpus=0)
def _measured(config: RunConfig) -> Costs:
    from agentrl.runtime.probe import measure

    return measure(config)
