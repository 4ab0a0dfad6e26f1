"""No forecast sees the future: what comes after event k cannot change what was said at k."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.admission import CapacityAdmission
from scheduler.core import Scheduler
from scheduler.costs import libra_shapes
from scheduler.estimators.context_tree import ContextTree, siblings, tool_history
from scheduler.estimators.hazard import HazardModel
from scheduler.estimators.pooled import PooledTrees
from scheduler.estimators.sibling_posterior import SiblingPosterior
from scheduler.events import Event, Finished, ToolReturned, ToolStatus, TurnFinished
from scheduler.policies import LengthEstimator
from scheduler.residual import Residual
from scheduler.routing.least_load import LeastLoad
from scheduler.sim.cluster import Cluster
from scheduler.sim.faults import FaultModel, Faults
from scheduler.sim.specs import StepSpec, WorkerSpec
from scheduler.sim.workload import PRESETS, AgentWorkload
from scheduler.views import TrajectoryView


class Recorder:
    """Keeps every forecast, made when a turn is ready, with its place in the log."""

    def __init__(self, estimator: LengthEstimator) -> None:
        self.estimator = estimator
        self.said: list[tuple[str, int, Residual]] = []

    def turn_ready(self, trajectory: TrajectoryView) -> None:
        self.estimator.turn_ready(trajectory)
        self.said.append(
            (trajectory.trajectory_id, trajectory.turn, self.estimator.predict(trajectory))
        )

    def placed(self, trajectory: TrajectoryView) -> None:
        self.estimator.placed(trajectory)

    def turn_finished(self, trajectory: TrajectoryView) -> None:
        self.estimator.turn_finished(trajectory)

    def ended(self, trajectory: TrajectoryView, *, is_complete: bool) -> None:
        self.estimator.ended(trajectory, is_complete=is_complete)


def estimators() -> dict[str, LengthEstimator]:
    return {
        "history": ContextTree(tool_history, strength=4),
        "siblings": ContextTree(siblings, strength=4),
        "pooled": PooledTrees(strength=4),
        "hazard": HazardModel(),
        "posterior": SiblingPosterior(),
        "combined": HazardModel(siblings=SiblingPosterior()),
    }


def fresh(recorder: Recorder) -> Scheduler:
    admission = CapacityAdmission(
        groups_per_step=4, num_steps=1, max_running_groups=4, max_staleness=0
    )
    routing = LeastLoad(sticky_gap=1.0)
    return Scheduler(routing=routing, admission=admission, observers=(recorder,))


def recorded_events(seed: int) -> list[Event]:
    events: list[Event] = []
    shape = libra_shapes()[2]
    Cluster(
        workers=[WorkerSpec(worker_id="w", bucket="b", shape=shape, max_running=12)],
        steps=StepSpec(num_steps=1, groups_per_step=4),
        workload=AgentWorkload(model=PRESETS["search"], seed=seed, group_size=4),
        scheduler=fresh(Recorder(PooledTrees())),
        faults=Faults(FaultModel(), np.random.default_rng(seed)),
        listen=lambda event, decisions: events.append(event),
    ).run()
    return events


def altered(event: Event) -> Event:
    """Another future: other lengths, other results."""
    match event:
        case TurnFinished():
            return replace(event, tokens=event.tokens * 3 + 7)
        case ToolReturned():
            return replace(event, status=ToolStatus.TIMEOUT, call_hash="loop", size_tokens=9)
        case Finished():
            return replace(event, tokens=event.tokens * 5 + 1)
        case _:
            return event


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), cut=st.floats(0.1, 0.9))
@pytest.mark.parametrize("name", list(estimators()))
def test_altering_everything_after_an_event_changes_no_forecast_before_it(
    name: str, seed: int, cut: float
) -> None:
    events = recorded_events(seed)
    at = int(cut * len(events))
    real, other = Recorder(estimators()[name]), Recorder(estimators()[name])
    schedulers = fresh(real), fresh(other)
    for i, event in enumerate(events):
        schedulers[0].on(event)
        schedulers[1].on(event if i <= at else altered(event))
        if i == at:
            assert real.said == other.said
            said_by_then = len(real.said)
    assert real.said[:said_by_then] == other.said[:said_by_then]


@pytest.mark.parametrize("name", list(estimators()))
def test_altered_futures_do_change_later_forecasts(name: str) -> None:
    """Negative control: the alteration is one that estimators notice."""
    events = recorded_events(1)
    at = len(events) // 3
    real, other = Recorder(estimators()[name]), Recorder(estimators()[name])
    for recorder, change in ((real, False), (other, True)):
        scheduler = fresh(recorder)
        for i, event in enumerate(events):
            scheduler.on(altered(event) if change and i > at else event)
    assert real.said != other.said
