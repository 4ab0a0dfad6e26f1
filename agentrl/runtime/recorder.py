"""Writes what happened in a step to the run folder and to trackers, and says it in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl.record.trackers import Tracker
from agentrl.record.writer import RunWriter
from agentrl.runtime.collector import Batch
from agentrl.runtime.display import EvalProgress, StepProgress, Summary
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.reports import (
    Evaluation,
    StepReport,
    judge_metrics,
    mean_reward,
    staleness_of,
    swap_metrics,
)
from agentrl.types import Group


class Recorder:
    def __init__(
        self,
        *,
        writer: RunWriter,
        trackers: Sequence[Tracker],
        num_steps: int,
    ) -> None:
        self._writer = writer
        self._trackers = trackers
        self._num_steps = num_steps

    def step(self, batch: Batch, report: StepReport, *, seconds: float) -> StepProgress:
        trained = report.trained
        for group in batch.groups:
            fate = trained.fates[group.group_id]
            for trajectory in group.trajectories:
                advantage = trained.advantages.get(trajectory.trajectory_id)
                dropped = None if advantage is not None else fate
                self._writer.trajectory(
                    trajectory, step=report.step, dropped=dropped, advantage=advantage
                )
        for group in batch.replayed:
            self._writer.replayed(
                report.step,
                group.group_id,
                reuse=group.reuse,
                staleness=int(staleness_of([group], report.step - 1).max()),
            )
        for trajectory in batch.dropped:
            dropped = trajectory.outcome.value
            self._writer.trajectory(trajectory, step=report.step, dropped=dropped)
        if trained.num_samples:
            self._writer.training(report.step, trained.columns, samples=trained.sample_lengths)
        line = self._line(batch, report, seconds)
        self._metrics(report.step, self._step_metrics(batch, report, line))
        return line

    def evaluation(
        self, step: int, groups: Sequence[Group], evaluation: Evaluation
    ) -> EvalProgress:
        for group in groups:
            for trajectory in group.trajectories:
                self._writer.trajectory(trajectory, step=step)
        metrics = {f"eval/{name}": value for name, value in evaluation.metrics.items()}
        self._metrics(
            step,
            {
                **metrics,
                "eval/reward": evaluation.reward,
                "eval/tasks": evaluation.num_scored,
                "eval/lost": evaluation.num_lost,
            },
        )
        return EvalProgress(step=step, reward=evaluation.reward, tasks=evaluation.num_scored)

    @property
    def dropped(self) -> Mapping[str, int]:
        """What the record lacks, by kind."""
        return self._writer.dropped

    def summary(self, progress: RunProgress) -> Summary:
        summary = Summary(
            run=self._writer.layout.root,
            steps=progress.step,
            is_complete=progress.step >= self._num_steps,
            eval_reward_before=progress.eval_reward_before,
            eval_reward=progress.eval_reward,
            wall_s=progress.wall_s,
            trajectories=progress.trajectories,
            outcomes=dict(progress.outcomes),
            eval_metrics=progress.eval_metrics,
        )
        if summary.is_complete:
            self._writer.summary(summary.to_json())
        return summary

    def flush(self) -> None:
        """Wait until the disk has what was handed over; for a thread of its own."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
        for tracker in self._trackers:
            tracker.close()

    def _line(self, batch: Batch, report: StepReport, seconds: float) -> StepProgress:
        trajectories = [t for group in batch.groups for t in group.trajectories]
        tokens = sum(t.num_sampled_tokens for t in [*trajectories, *batch.dropped])
        ended = sum(batch.outcomes.values())
        return StepProgress(
            step=report.step,
            num_steps=self._num_steps,
            reward=mean_reward(trajectories),
            trajectories=ended,
            trajectories_per_s=ended / seconds,
            tokens_per_s=tokens / seconds,
            outcomes=dict(batch.outcomes),
            seconds=seconds,
            stalled_turn_s=sum(swap.stalled_turn_s for swap in report.swaps),
        )

    def _step_metrics(self, batch: Batch, report: StepReport, line: StepProgress) -> dict[str, Any]:
        staleness = staleness_of(batch.groups, report.step - 1)
        ages = [int(staleness_of([g], report.step - 1).max()) for g in batch.replayed]
        fates = [report.trained.fates[group.group_id] for group in batch.groups]
        return {
            "reward": line.reward,
            "trajectories": line.trajectories,
            "trajectories_per_s": line.trajectories_per_s,
            "tokens_per_s": line.tokens_per_s,
            "seconds": line.seconds,
            "collect_s": report.collect_s,
            "train_s": report.train_s,
            "publish_s": report.publish_s,
            **swap_metrics(report.swaps),
            "staleness_mean": float(np.mean(staleness)) if len(staleness) else 0.0,
            "staleness_max": int(np.max(staleness, initial=0)),
            "replayed_groups": len(ages),
            "replayed_staleness_mean": float(np.mean(ages)) if ages else 0.0,
            **judge_metrics([*(t for g in batch.groups for t in g.trajectories), *batch.dropped]),
            **{f"outcomes/{kind}": count for kind, count in batch.outcomes.items()},
            **{f"groups/{fate}": fates.count(fate) for fate in sorted(set(fates))},
            **{f"train/{name}": value for name, value in report.trained.metrics.items()},
            "record/dropped": sum(self._writer.dropped.values()),
            "record/failed": sum(self._writer.failed.values()),
        }

    def _metrics(self, step: int, values: dict[str, Any]) -> None:
        self._writer.metrics({"step": step, **values})
        numbers = {name: value for name, value in values.items() if value is not None}
        for tracker in self._trackers:
            tracker.log(step, numbers)
