"""What a run counts for Prometheus, by the names that dashboards and alerts use.

Two kinds of metrics stand here. What happens (steps, attempts that end, processes that are lost) is
counted as it happens. What is the case now (waiting turns, workers by role, boxes) is asked of the
processes when somebody scrapes, and stands for that scrape alone: what did not answer is missing
from it, and `agentrl_process_up` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import nan
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agentrl.runtime.status import CoordinatorStatus, RunnerStatus, RunStatus
from agentrl.types import Trajectory

_GAUGES = {
    "reward": ("agentrl_reward", "Mean reward of the newest step's fresh attempts."),
    "eval/reward": ("agentrl_eval_reward", "Mean reward of the newest evaluation."),
    "trajectories_per_s": (
        "agentrl_trajectories_per_second",
        "Attempts that ended, over the newest step.",
    ),
    "tokens_per_s": ("agentrl_tokens_per_second", "Sampled tokens, over the newest step."),
    "staleness_mean": (
        "agentrl_staleness_mean_steps",
        "How many optimizer steps old the weights behind the newest step's fresh tokens were.",
    ),
    "staleness_max": ("agentrl_staleness_max_steps", "The same, of the oldest token."),
    "train/loss": ("agentrl_train_loss", "Of the newest step."),
    "train/grad_norm": ("agentrl_train_gradient_norm", "Before clipping."),
    "train/entropy": ("agentrl_train_entropy_nats", "Mean over sampled tokens."),
    "train/logprob_diff_max": (
        "agentrl_train_logprob_difference_max_nats",
        "Largest distance between the trainer's and the rollout's log-prob of a fresh token.",
    ),
}
"""By the name of the metric in `metrics.jsonl`."""
_PARTS = {"seconds": "all", "collect_s": "collect", "train_s": "train"}
_STEP_BUCKETS_S = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_ATTEMPT_BUCKETS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)

Restarted = Literal["coordinator", "worker", "runner", "run"]


class RunMetrics:
    """A tracker of steps, and the counters beside them. It outlives the launches of a run."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._step = Gauge("agentrl_step", "Optimizer steps done.", registry=registry)
        self._gauges = {
            key: Gauge(name, text, registry=registry) for key, (name, text) in _GAUGES.items()
        }
        for gauge in self._gauges.values():
            gauge.set(nan)  # until a step has a value: 0 would be one
        self._seconds = Histogram(
            "agentrl_step_duration_seconds",
            "Wall clock of a step (all) and of its parts.",
            ["part"],
            buckets=_STEP_BUCKETS_S,
            registry=registry,
        )
        self._groups = Counter(
            "agentrl_groups",
            "Fresh groups handed to training, by fate.",
            ["fate"],
            registry=registry,
        )
        self._replayed = Counter(
            "agentrl_replayed_groups", "Groups that a step trained on again.", registry=registry
        )
        self._trajectories = Counter(
            "agentrl_trajectories",
            "Attempts that ended, retried ones too.",
            ["split", "outcome"],
            registry=registry,
        )
        self._tokens = Counter(
            "agentrl_sampled_tokens", "Tokens sampled by attempts that ended.", registry=registry
        )
        self._attempt_seconds = Histogram(
            "agentrl_trajectory_duration_seconds",
            "Wall clock of an attempt.",
            buckets=_ATTEMPT_BUCKETS_S,
            registry=registry,
        )
        self._restarts = Counter(
            "agentrl_restarts",
            "Processes started in the place of one that ended; run: gone on from a checkpoint.",
            ["process"],
            registry=registry,
        )
        for process in get_args(Restarted):
            self._restarts.labels(process)

    # ---------------------------------------------------------------------------- what happens

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step, or of an evaluation after it."""
        self._step.set(step)
        for key, gauge in self._gauges.items():
            if key in values:
                gauge.set(values[key])
        for key, part in _PARTS.items():
            if key in values:
                self._seconds.labels(part).observe(values[key])
        for key, value in values.items():
            if key.startswith("groups/"):
                self._groups.labels(key.removeprefix("groups/")).inc(value)
        self._replayed.inc(values.get("replayed_groups", 0))

    def returned(self, trajectory: Trajectory) -> None:
        self._trajectories.labels(trajectory.split, trajectory.outcome.value).inc()
        self._tokens.inc(trajectory.num_sampled_tokens)
        self._attempt_seconds.observe(trajectory.seconds)

    def restarted(self, process: Restarted) -> None:
        self._restarts.labels(process).inc()

    def close(self) -> None:
        """A launch has ended; the counters stay."""


class Scrape:
    """A prometheus collector of what is the case now."""

    def __init__(
        self,
        status: RunStatus,
        *,
        oldest_wait_s: float,
        record_dropped: Mapping[str, int],
        held_attempts: int,
    ) -> None:
        self._status = status
        self._oldest_wait_s = oldest_wait_s
        self._record_dropped = record_dropped
        self._held_attempts = held_attempts

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield GaugeMetricFamily(
            "agentrl_oldest_wait_seconds",
            "How long the driver's oldest wait lasts by now.",
            value=self._oldest_wait_s,
        )
        yield GaugeMetricFamily(
            "agentrl_held_attempts",
            "Attempts that are not begun yet, because boxes, engines or judges fail.",
            value=self._held_attempts,
        )
        yield _counters(
            "agentrl_record_dropped",
            "What the record lacks, because it could not be written in time.",
            "kind",
            self._record_dropped,
        )
        named = {"coordinator": status.coordinator, **status.runners, **status.workers}
        yield _gauges(
            "agentrl_process_up",
            "Whether a process answered this scrape.",
            "process",
            {name: float(answer is not None) for name, answer in named.items()},
        )
        if status.coordinator is not None:
            yield from _scheduling(status.coordinator)
        yield from _running({n: r for n, r in status.runners.items() if r is not None})
        yield from _engines(status)


def _scheduling(coordinator: CoordinatorStatus) -> Iterator[Metric]:
    demands = {role.value: demand for role, demand in coordinator.demands.items()}
    fields: dict[str, Callable[[str], float]] = {
        "waiting": lambda role: demands[role].waiting,
        "decoding": lambda role: demands[role].decoding,
        "resting": lambda role: demands[role].resting,
    }
    turns = GaugeMetricFamily(
        "agentrl_open_trajectories",
        "Open attempts and judgements by what they do: wait for a worker, decode, or neither.",
        labels=["role", "state"],
    )
    for role in demands:
        for state, count in fields.items():
            turns.add_metric([role, state], count(role))
    yield turns
    workers = GaugeMetricFamily("agentrl_workers", "Workers in service.", labels=["role", "bucket"])
    sides = [(worker.role.value, worker.bucket) for worker in coordinator.workers]
    for role, bucket in sorted(set(sides)):
        workers.add_metric([role, bucket], sides.count((role, bucket)))
    yield workers
    yield _counters(
        "agentrl_scheduler_events",
        "What the coordinator was told, since it was started; WorkerLost is a lost worker.",
        "event",
        coordinator.events,
    )
    yield _counters(
        "agentrl_scheduler_decisions",
        "What it decided, since it was started; Shift is a worker that changes its role.",
        "decision",
        coordinator.decisions,
    )


def _running(runners: Mapping[str, RunnerStatus]) -> Iterator[Metric]:
    yield _gauges(
        "agentrl_runner_attempts",
        "Attempts that a runner holds, those that wait for a seat too.",
        "runner",
        {name: runner.num_attempts for name, runner in runners.items()},
    )
    yield _gauges(
        "agentrl_oldest_attempt_seconds",
        "How long a runner's oldest attempt runs by now.",
        "runner",
        {name: max((s for _, s in r.oldest), default=0.0) for name, r in runners.items()},
    )
    pools = {name: runner.boxes for name, runner in runners.items() if runner.boxes is not None}
    boxes = GaugeMetricFamily("agentrl_boxes", "Boxes by state.", labels=["runner", "state"])
    for name, pool in pools.items():
        for state in ("leased", "ready", "creating", "deleting"):
            boxes.add_metric([name, state], getattr(pool, state))
    yield boxes
    counters = {
        "agentrl_box_creates": ("Boxes that were made.", "created"),
        "agentrl_box_create_failures": ("Boxes that could not be made.", "create_failures"),
        "agentrl_box_delete_failures": ("Boxes that could not be deleted.", "delete_failures"),
        "agentrl_box_wait_seconds": ("Time that leases waited for a box.", "wait_seconds"),
    }
    for name, (text, field) in counters.items():
        values = {runner: getattr(pool, field) for runner, pool in pools.items()}
        yield _counters(name, text, "runner", values)


def _engines(status: RunStatus) -> Iterator[Metric]:
    engines = {name: stats[0] for name, stats in status.workers.items() if stats}
    gauges = {
        "agentrl_engine_running_requests": ("Turns in decoding.", "running"),
        "agentrl_engine_waiting_requests": ("Turns that wait for a slot.", "waiting"),
        "agentrl_engine_slots": ("Sequences whose caches fit.", "num_slots"),
        "agentrl_engine_cached_tokens": ("Tokens whose keys and values are held.", "cached_tokens"),
        "agentrl_engine_policy_version": ("Number of the weights.", "policy_version"),
    }
    for name, (text, field) in gauges.items():
        values = {worker: getattr(stats, field) for worker, stats in engines.items()}
        yield _gauges(name, text, "worker", values)
    counters = {
        "agentrl_engine_generated_tokens": ("Tokens that were sampled.", "tokens_generated"),
        "agentrl_engine_prefilled_tokens": ("Tokens of contexts computed.", "tokens_prefilled"),
    }
    for name, (text, field) in counters.items():
        values = {worker: getattr(stats, field) for worker, stats in engines.items()}
        yield _counters(name, text, "worker", values)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
