"""Settings that are fine alone and wrong together, told with the numbers that conflict.

`conflicts` needs nothing but the settings and holds for every `RunConfig` there is.
`machine_conflicts` asks about the machine that would run it, so only `agentrl train` and
`agentrl check` do; a recorded configuration of a big machine can be read on a small one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.config import fleet

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Settings that exclude each other."""

    paths: tuple[tuple[str, ...], ...]
    """The keys to change; the first is the likeliest."""
    message: str


class Conflicts(ValueError):
    """All conflicts of one configuration."""

    def __init__(self, conflicts: tuple[Conflict, ...]) -> None:
        super().__init__("; ".join(conflict.message for conflict in conflicts))
        self.conflicts = conflicts


def conflicts(config: RunConfig) -> tuple[Conflict, ...]:
    """What cannot hold at once, whatever the machine."""
    return (
        *_budgets(config),
        *_groups(config),
        *_sampling(config),
        *_replay(config),
        *_waits(config),
        *_judging(config),
        *_layout(config),
        *_buckets(config),
        *_cluster(config),
    )


def machine_conflicts(config: RunConfig, *, num_cores: int) -> tuple[Conflict, ...]:
    """What this machine cannot give; a cluster that is joined places its own workers."""
    runtime = config.runtime
    if runtime.ray_address is not None or not runtime.pin_cores:
        return ()
    if fleet.num_cores(config) <= num_cores:
        return ()
    judging = fleet.num_genrm_workers(config)
    key = "runtime.buckets" if runtime.buckets else "runtime.rollout_workers"
    rollout = (
        f"runtime.buckets of {sum(b.workers * b.cores for b in runtime.buckets)} cores"
        if runtime.buckets
        else f"runtime.rollout_workers {runtime.rollout_workers}"
    )
    return (
        _conflict(
            [key, "runtime.pin_cores"],
            f"{rollout} + runtime.training_workers {runtime.training_workers}"
            f"{f' + runtime.genrm_workers {judging}' if judging else ''}"
            f" want a core each, and this machine has {num_cores}; "
            "lower them, or let workers share cores with runtime.pin_cores: false",
        ),
    )


def _conflict(keys: list[str], message: str) -> Conflict:
    return Conflict(paths=tuple(tuple(key.split(".")) for key in keys), message=message)


def _budgets(config: RunConfig) -> Iterator[Conflict]:
    rollout, warmup = config.rollout, config.warmup
    if rollout.max_turn_tokens > rollout.max_trajectory_tokens:
        yield _conflict(
            ["rollout.max_turn_tokens", "rollout.max_trajectory_tokens"],
            f"rollout.max_turn_tokens {rollout.max_turn_tokens} is more than "
            f"rollout.max_trajectory_tokens {rollout.max_trajectory_tokens}, which all turns "
            "share; lower the first or raise the second",
        )
    if rollout.max_trajectory_tokens > rollout.context_tokens:
        yield _conflict(
            ["rollout.max_trajectory_tokens", "rollout.context_tokens"],
            f"rollout.max_trajectory_tokens {rollout.max_trajectory_tokens} cannot fit into "
            f"rollout.context_tokens {rollout.context_tokens}, which also holds the prompt and "
            "tool text; lower the first or raise the second",
        )
    if rollout.max_turn_tokens >= rollout.context_tokens:
        yield _conflict(
            ["rollout.context_tokens", "rollout.max_turn_tokens"],
            f"rollout.context_tokens {rollout.context_tokens} leaves no room for a prompt beside "
            f"one turn of rollout.max_turn_tokens {rollout.max_turn_tokens}; raise the first or "
            "lower the second",
        )
    if warmup.steps and warmup.row_tokens > warmup.batch_tokens:
        yield _conflict(
            ["warmup.row_tokens", "warmup.batch_tokens"],
            f"warmup.row_tokens {warmup.row_tokens} is more than warmup.batch_tokens "
            f"{warmup.batch_tokens}, so a step would hold no row; lower the first",
        )


def _groups(config: RunConfig) -> Iterator[Conflict]:
    rollout, advantage = config.rollout, config.train.advantage.type
    if rollout.group_size < 2:
        yield _conflict(
            ["rollout.group_size"],
            f"rollout.group_size {rollout.group_size} gives train.advantage {advantage} nothing "
            "to compare with; wanted at least 2",
        )
    elif rollout.min_group < 2:
        yield _conflict(
            ["rollout.min_group"],
            f"rollout.min_group {rollout.min_group} lets train.advantage {advantage} compare one "
            "attempt with itself; wanted at least 2",
        )
    elif rollout.min_group > rollout.group_size:
        yield _conflict(
            ["rollout.min_group", "rollout.group_size"],
            f"rollout.min_group {rollout.min_group} is more than rollout.group_size "
            f"{rollout.group_size}, so no group would ever train; lower the first",
        )
    actions = {config.outcomes.finished, config.outcomes.truncated}
    if not actions & {"train", "zero"}:
        yield _conflict(
            ["outcomes.finished", "outcomes.truncated"],
            f"outcomes.finished {config.outcomes.finished} and outcomes.truncated "
            f"{config.outcomes.truncated} leave nothing to train on; wanted `train` for one",
        )


def _sampling(config: RunConfig) -> Iterator[Conflict]:
    rollout = config.rollout
    if rollout.temperature == 0:
        yield _conflict(
            ["rollout.temperature"],
            "rollout.temperature 0 makes all attempts at a task equal, and greedy choices have no "
            "log-probs to learn from; wanted more than 0, such as 1.0",
        )
    if rollout.top_p < 1 or rollout.top_k > 0:
        yield _conflict(
            ["rollout.top_p", "rollout.top_k"],
            f"rollout.top_p {rollout.top_p} and rollout.top_k {rollout.top_k} cut the "
            "distribution, and the trainer cannot know which tokens were kept; wanted 1.0 and 0",
        )


def _replay(config: RunConfig) -> Iterator[Conflict]:
    train, replay = config.train, config.train.replay
    if replay.share == 0:
        return
    fresh, replayed = train.fresh_groups_per_step, train.replayed_groups_per_step
    if not (fresh and replayed):
        yield _conflict(
            ["train.replay.share", "train.groups_per_step"],
            f"train.replay.share {replay.share:g} of train.groups_per_step {train.groups_per_step} "
            f"is {replayed} groups, and leaves {fresh}; a step needs fresh and replayed ones, so "
            "change the first or raise the second",
        )
    elif replayed > fresh * replay.max_reuses:
        yield _conflict(
            ["train.replay.max_reuses", "train.replay.share"],
            f"train.replay.share {replay.share:g} asks for {replayed} replayed groups a step, and "
            f"{fresh} fresh ones with train.replay.max_reuses {replay.max_reuses} give "
            f"{fresh * replay.max_reuses}; raise the second or lower the first",
        )
    if replay.max_staleness <= train.max_staleness:
        yield _conflict(
            ["train.replay.max_staleness", "train.max_staleness"],
            f"train.replay.max_staleness {replay.max_staleness} is not more than "
            f"train.max_staleness {train.max_staleness}, so a group could be too old to be "
            "replayed when it is fresh; raise the first",
        )


def _waits(config: RunConfig) -> Iterator[Conflict]:
    stall_s, attempt_s = config.runtime.stall_timeout_s, config.rollout.trajectory_timeout_s
    if stall_s <= attempt_s:
        yield _conflict(
            ["runtime.stall_timeout_s", "rollout.trajectory_timeout_s"],
            f"runtime.stall_timeout_s {stall_s:g} would end a run while an attempt may still take "
            f"rollout.trajectory_timeout_s {attempt_s:g}; raise the first above the second",
        )


def _judging(config: RunConfig) -> Iterator[Conflict]:
    judge = config.judge
    if judge is None:
        return
    if judge.temperature == 0 and judge.tries > 1:
        yield _conflict(
            ["judge.temperature", "judge.tries"],
            f"judge.temperature 0 gives the same answer in each of judge.tries {judge.tries}; "
            "raise the first above 0, or set judge.tries: 1",
        )
    if judge.timeout_s >= config.rollout.trajectory_timeout_s:
        yield _conflict(
            ["judge.timeout_s", "rollout.trajectory_timeout_s"],
            f"judge.timeout_s {judge.timeout_s:g} is not less than rollout.trajectory_timeout_s "
            f"{config.rollout.trajectory_timeout_s:g}, which ends a reward that waits for it; "
            "lower the first",
        )
    if judge.type == "genrm" and judge.model.from_ == "scratch" and judge.warmup.steps == 0:
        yield _conflict(
            ["judge.warmup.steps", "judge.model"],
            "judge.model from scratch with judge.warmup.steps 0 would judge with random weights; "
            "teach it, or load one with judge.model: {from: path}",
        )
    if judge.type == "genrm" and judge.max_tokens >= judge.context_tokens:
        yield _conflict(
            ["judge.max_tokens", "judge.context_tokens"],
            f"judge.context_tokens {judge.context_tokens} leaves no room for a question beside an "
            f"answer of judge.max_tokens {judge.max_tokens}; raise the first or lower the second",
        )
    if (
        judge.type == "genrm"
        and judge.warmup.steps
        and judge.warmup.row_tokens > judge.warmup.batch_tokens
    ):
        yield _conflict(
            ["judge.warmup.row_tokens", "judge.warmup.batch_tokens"],
            f"judge.warmup.row_tokens {judge.warmup.row_tokens} is more than "
            f"judge.warmup.batch_tokens {judge.warmup.batch_tokens}, so a step would hold no row; "
            "lower the first",
        )


def _layout(config: RunConfig) -> Iterator[Conflict]:
    runtime, policy = config.runtime, config.scheduler.shifting.policy
    is_judged = config.judge is not None and config.judge.type == "genrm"
    if not is_judged or runtime.genrm_workers:
        return
    if runtime.layout == "disaggregated":
        yield _conflict(
            ["runtime.genrm_workers", "runtime.layout"],
            "runtime.genrm_workers 0 leaves nobody to judge in runtime.layout disaggregated, where "
            "workers keep their roles; give it one, or choose colocated or elastic",
        )
    elif runtime.layout == "elastic" and policy != "pay_back":
        yield _conflict(
            ["runtime.genrm_workers", "scheduler.shifting.policy"],
            f"runtime.genrm_workers 0 leaves nobody to judge under scheduler.shifting.policy "
            f"{policy}, which fills no empty role; give it one, or choose pay_back",
        )


def _buckets(config: RunConfig) -> Iterator[Conflict]:
    runtime = config.runtime
    names = [bucket.name for bucket in runtime.buckets]
    if len(set(names)) < len(names):
        yield _conflict(
            ["runtime.buckets"],
            f"runtime.buckets are called {', '.join(names)}; each needs a name of its own",
        )
    if runtime.buckets and runtime.rollout_workers > 1:
        yield _conflict(
            ["runtime.rollout_workers", "runtime.buckets"],
            f"runtime.rollout_workers {runtime.rollout_workers} means nothing beside "
            "runtime.buckets, which say how many workers there are of each kind; leave it out",
        )
    if len(names) > 1 and runtime.layout != "disaggregated":
        yield _conflict(
            ["runtime.layout", "runtime.buckets"],
            f"runtime.layout {runtime.layout} shifts workers that are all alike, and runtime."
            f"buckets has {len(names)} kinds; keep one of them, or choose disaggregated",
        )
    for bucket in runtime.buckets:
        if bucket.max_running > runtime.slots:
            yield _conflict(
                ["runtime.slots", "runtime.buckets"],
                f"runtime.buckets {bucket.name} decodes {bucket.max_running} sequences together, "
                f"and runtime.slots {runtime.slots} is what a worker holds; raise the second",
            )


def _cluster(config: RunConfig) -> Iterator[Conflict]:
    runtime, model = config.runtime, config.model
    if runtime.ray_address is not None and model.from_ == "path" and model.path.startswith("."):
        yield _conflict(
            ["model.path", "runtime.ray_address"],
            f"model.path {model.path} is relative, and workers on other nodes run in other "
            "folders; give the path from the root, to a folder that all nodes have",
        )
    if runtime.share is None:
        return
    if runtime.ray_address is None:
        yield _conflict(
            ["runtime.share", "runtime.ray_address"],
            "runtime.share without runtime.ray_address shares a cluster that only this run has; "
            "give the address of one, or leave it out",
        )
    if any(bucket.cores > 1 for bucket in runtime.buckets):
        yield _conflict(
            ["runtime.share", "runtime.buckets"],
            "runtime.share lends slots one by one, and runtime.buckets has workers of several "
            "cores; set their cores to 1, or leave runtime.share out",
        )
