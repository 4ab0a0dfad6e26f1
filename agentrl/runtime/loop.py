"""The main loop of a run: collect, train, publish, record, again.

It owns the order of things and nothing else. Whether a run is synchronous is decided by how many
groups the coordinator admits; where attempts run, how weights travel and what is written are
decided when the parts are made. The loop waits for one thing at a time, always under a name, and
stops between two steps when asked to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from agentrl.config.run import RunConfig
from agentrl.runtime.collector import Batch, Collector
from agentrl.runtime.display import Display, Summary
from agentrl.runtime.experience import Experience
from agentrl.runtime.failures import NoSignal, StopRequested
from agentrl.runtime.fleet import Fleet
from agentrl.runtime.journals import Journals
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.recorder import Recorder
from agentrl.runtime.reports import StepReport, evaluation_of
from agentrl.runtime.watchdog import Watchdog
from agentrl.types import Task
from scheduler.events import Event, Published, RunStarted, StepEnded

Result = TypeVar("Result")


class TrainingLoop:
    """`run()` once, after the fleet has its roles."""

    def __init__(
        self,
        *,
        config: RunConfig,
        progress: RunProgress,
        fleet: Fleet,
        collector: Collector,
        experience: Experience,
        recorder: Recorder,
        display: Display,
        watchdog: Watchdog,
        journals: Journals,
        tell: Callable[[Event], None],
        eval_tasks: Sequence[Task],
        stop: asyncio.Event,
        clock: Callable[[], float],
        started_s: float,
    ) -> None:
        """`started_s` on `clock`: when the run began, less the time between its launches."""
        self._config = config
        self._progress = progress
        self._fleet = fleet
        self._collector = collector
        self._experience = experience
        self._recorder = recorder
        self._display = display
        self._watchdog = watchdog
        self._journals = journals
        self._tell = tell
        self._eval_tasks = eval_tasks
        self._stop = stop
        self._clock = clock
        self._started_s = started_s

    async def run(self) -> Summary:
        try:
            await self._begin()
            while self._progress.step < self._config.train.steps:
                batch = await self._collect()
                report = await self._train(batch)
                self._report(batch, report)
                await self._evaluate_if_due()
                await self._checkpoint_if_due()
        except StopRequested:
            await self._checkpoint()
        self._progress.wall_s = self._clock() - self._started_s
        return self._recorder.summary(self._progress)

    # ------------------------------------------------------------------------------- the verbs

    async def _begin(self) -> None:
        accepted = self._progress.step * self._config.train.fresh_groups_per_step
        self._tell(RunStarted(version=self._progress.step, accepted_groups=accepted))
        if self._progress.eval_reward_before is None:
            await self._evaluate()
            self._progress.eval_reward_before = self._progress.eval_reward
            await self._checkpoint()

    async def _collect(self) -> Batch:
        self._step_started_s = self._clock()
        wanted, step = self._config.train.fresh_groups_per_step, self._progress.step + 1
        batch = await self._wait(
            f"{wanted} complete groups for step {step}", self._collector.batch(wanted)
        )
        batch.replayed = self._experience.draw(step)
        return batch

    async def _train(self, batch: Batch) -> StepReport:
        """The new weights are published before the workers may turn to other work."""
        step = self._progress.step + 1
        collected_s = self._clock()
        groups = [*batch.groups, *batch.replayed]
        trained = await self._finish(f"training step {step}", self._fleet.train(step, groups))
        trained_s = self._clock()
        self._progress.step = step
        self._count_signal(has_signal=trained.num_samples > 0)
        self._experience.keep(step, [g for g in batch.groups if trained.was_trained_on(g)])
        await self._finish(f"weights of version {step}", self._fleet.publish(step))
        published_s = self._clock()
        self._tell(StepEnded(step=step, seconds=trained_s - collected_s))
        self._tell(Published(version=step))
        return StepReport(
            step=step,
            trained=trained,
            collect_s=collected_s - self._step_started_s,
            train_s=trained_s - collected_s,
            publish_s=published_s - trained_s,
            swaps=await self._fleet.take_swap_costs(),
        )

    def _report(self, batch: Batch, report: StepReport) -> None:
        now = self._clock()
        self._progress.wall_s = now - self._started_s
        self._progress.trajectories += sum(batch.outcomes.values())
        for kind, count in batch.outcomes.items():
            self._progress.outcomes[kind] = self._progress.outcomes.get(kind, 0) + count
        self._progress.cursor = self._collector.cursor
        self._progress.pending = self._collector.untrained
        line = self._recorder.step(batch, report, seconds=now - self._step_started_s)
        self._display.step(line)
        self._journals.stepped(self._progress)

    async def _evaluate_if_due(self) -> None:
        every, step = self._config.eval.every_steps, self._progress.step
        if step == self._config.train.steps or (every and step % every == 0):
            await self._evaluate()

    async def _checkpoint_if_due(self) -> None:
        every, step = self._config.checkpoint.every_steps, self._progress.step
        is_best = self._progress.best_step == step
        if step == self._config.train.steps or is_best or (every and step % every == 0):
            await self._checkpoint()

    # ------------------------------------------------------------------------------- the parts

    async def _evaluate(self) -> None:
        step = self._progress.step
        groups = await self._wait(
            f"evaluation after step {step}",
            self._collector.evaluate(f"eval{step:06d}", self._eval_tasks),
        )
        evaluation = evaluation_of(groups)
        self._progress.eval_reward = evaluation.reward
        self._progress.eval_metrics = dict(evaluation.metrics)
        best = self._progress.best_reward
        if evaluation.reward is not None and (best is None or evaluation.reward > best):
            self._progress.best_reward, self._progress.best_step = evaluation.reward, step
        self._display.evaluated(self._recorder.evaluation(step, groups, evaluation))

    async def _checkpoint(self) -> None:
        self._progress.cursor = self._collector.cursor
        self._progress.pending = self._collector.untrained
        self._progress.experience = self._experience.references()
        step = self._progress.step
        await self._finish(f"record up to step {step}", asyncio.to_thread(self._recorder.flush))
        await self._finish(f"checkpoint of step {step}", self._fleet.checkpoint(self._progress))
        self._journals.checkpointed(self._progress)

    def _count_signal(self, *, has_signal: bool) -> None:
        train = self._config.train
        self._progress.empty_steps = 0 if has_signal else self._progress.empty_steps + 1
        allowed = train.max_empty_steps if train.empty_batch == "skip" else 1
        if self._progress.empty_steps >= allowed:
            raise NoSignal(
                f"{self._progress.empty_steps} step(s) in a row had no group with unequal rewards, "
                f"the last one step {self._progress.step}; the task is too easy or too hard for the "
                "model: change the environment's options or warm-up, raise rollout.group_size, or "
                "raise train.max_empty_steps"
            )

    async def _finish(self, name: str, work: Coroutine[Any, Any, Result]) -> Result:
        """Work that is brought to its end even when the run is asked to stop."""
        with self._watchdog.waiting(name):
            result = await work
        self._watchdog.progressed()
        return result

    async def _wait(self, name: str, work: Coroutine[Any, Any, Result]) -> Result:
        """Work that is given up when the run is asked to stop."""
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            with self._watchdog.waiting(name):
                await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise StopRequested(name)
            self._watchdog.progressed()
            return working.result()
        finally:
            working.cancel()
            stopping.cancel()
