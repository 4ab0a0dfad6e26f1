"""Names and values of the metrics, from what a run would tell."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from ray.exceptions import ActorUnschedulableError, RayActorError
from sample_trajectories import make_trajectory

from agentrl.engine.engine import EngineStats
from agentrl.runtime.metrics import RunMetrics, Scrape
from agentrl.runtime.status import CoordinatorStatus, Inquiry, RunnerStatus, RunStatus, waits_of
from scheduler.events import Role
from scheduler.views import Demand

ENGINE = EngineStats(
    policy_version=3,
    running=2,
    waiting=1,
    num_slots=8,
    cached_tokens=640,
    tokens_generated=1000,
    tokens_prefilled=500,
)
STATUS = RunStatus(
    coordinator=CoordinatorStatus(
        demands={Role.ROLLOUT: Demand(waiting=5, decoding=2, resting=1)},
        workers=[],
        events={"WorkerLost": 1},
        decisions={"Shift": 4},
    ),
    runners={"runner-0": RunnerStatus(num_attempts=8, oldest=[("g1-3", 9.0)], boxes=None)},
    workers={"worker-0": [], "worker-1": [ENGINE], "worker-2": None},
)


def text_of(registry: CollectorRegistry) -> list[str]:
    return generate_latest(registry).decode().splitlines()


def test_what_happens_is_counted() -> None:
    metrics = RunMetrics()
    assert "agentrl_reward NaN" in text_of(metrics.registry)
    metrics.returned(make_trajectory(sibling=0))
    metrics.returned(make_trajectory(sibling=1, split="eval"))
    metrics.log(1, {"reward": 0.25, "seconds": 3.0, "groups/trained": 2, "replayed_groups": 1})
    metrics.log(1, {"eval/reward": 0.5})
    metrics.log(2, {"reward": 0.75, "seconds": 4.0, "groups/zero_variance": 1})
    lines = text_of(metrics.registry)
    assert "agentrl_step 2.0" in lines
    assert "agentrl_reward 0.75" in lines
    assert "agentrl_eval_reward 0.5" in lines
    assert 'agentrl_trajectories_total{outcome="finished",split="train"} 1.0' in lines
    assert 'agentrl_trajectories_total{outcome="finished",split="eval"} 1.0' in lines
    assert 'agentrl_step_duration_seconds_sum{part="all"} 7.0' in lines
    assert 'agentrl_groups_total{fate="trained"} 2.0' in lines
    assert "agentrl_replayed_groups_total 1.0" in lines


def test_what_is_the_case_now_is_asked_and_who_is_silent_is_named() -> None:
    registry = CollectorRegistry()
    registry.register(
        Scrape(STATUS, oldest_wait_s=7.0, record_dropped={"trajectory": 3}, held_attempts=24)
    )
    lines = text_of(registry)
    assert "agentrl_oldest_wait_seconds 7.0" in lines
    assert "agentrl_held_attempts 24.0" in lines
    assert 'agentrl_record_dropped_total{kind="trajectory"} 3.0' in lines
    assert 'agentrl_open_trajectories{role="rollout",state="waiting"} 5.0' in lines
    assert 'agentrl_scheduler_decisions_total{decision="Shift"} 4.0' in lines
    assert 'agentrl_oldest_attempt_seconds{runner="runner-0"} 9.0' in lines
    assert 'agentrl_engine_cached_tokens{worker="worker-1"} 640.0' in lines
    assert 'agentrl_process_up{process="worker-2"} 0.0' in lines
    assert 'agentrl_process_up{process="worker-1"} 1.0' in lines


def test_waits_in_words() -> None:
    assert waits_of(STATUS) == [
        "worker-2, which does not answer",
        "runner-0: attempt g1-3, for 9 s",
        "rollout: 5 turns wait for a worker, 2 run on 0 worker(s), 1 attempts are between turns",
    ]


class Lost:
    """A worker that is gone, or was to be on a machine that is."""

    def __init__(self, error: Exception) -> None:
        self.status = self
        self._error = error

    async def remote(self) -> Any:
        raise self._error


@pytest.mark.parametrize("error", [RayActorError(), ActorUnschedulableError("no such node")])
async def test_a_lost_worker_is_silent_and_fails_no_inquiry(error: Exception) -> None:
    async def asked() -> CoordinatorStatus:
        assert STATUS.coordinator is not None
        return STATUS.coordinator

    inquiry = Inquiry(asked, runners=dict, workers=lambda: {"worker-0": Lost(error)})
    assert (await inquiry.make()).workers == {"worker-0": None}
