"""How many processes a run file asks for, of which kind, and on how many cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.config.sections import BucketSection

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig

DEFAULT_BUCKET = "default"


def rollout_buckets(config: RunConfig) -> tuple[BucketSection, ...]:
    """Kinds of rollout workers; one kind, a core each, when the file names none."""
    runtime = config.runtime
    alike = BucketSection(
        name=DEFAULT_BUCKET, workers=runtime.rollout_workers, max_running=runtime.slots
    )
    return runtime.buckets or (alike,)


def num_rollout_workers(config: RunConfig) -> int:
    return sum(bucket.workers for bucket in rollout_buckets(config))


def num_genrm_workers(config: RunConfig) -> int:
    is_genrm = config.judge is not None and config.judge.type == "genrm"
    return config.runtime.genrm_workers if is_genrm else 0


def num_workers(config: RunConfig) -> int:
    """Processes that hold cores or accelerators."""
    training = config.runtime.training_workers
    return training + num_rollout_workers(config) + num_genrm_workers(config)


def fewest_workers(config: RunConfig) -> int:
    """A run cannot work with fewer: one for each role, where workers keep theirs."""
    if config.runtime.layout != "disaggregated":
        return 1
    return 2 + min(1, num_genrm_workers(config))


def num_cores(config: RunConfig) -> int:
    """Those that workers hold, when each has its own."""
    rollout = sum(bucket.workers * bucket.cores for bucket in rollout_buckets(config))
    return config.runtime.training_workers + rollout + num_genrm_workers(config)
