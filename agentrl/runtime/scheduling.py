"""The scheduler of a run, made from its settings; `agentrl replay` makes the same one again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.config.fleet import num_genrm_workers, num_rollout_workers, rollout_buckets
from agentrl.config.run import RunConfig
from agentrl.runtime.costs import Costs
from scheduler.admission import CapacityAdmission
from scheduler.calibration import Calibration, KnownCosts
from scheduler.core import Scheduler
from scheduler.costs import DecodeCost, PrefillCost, Shape, TrainCost
from scheduler.events import Role
from scheduler.policies import Observer
from scheduler.shifting.selection import ShiftWorld
from scheduler.shifting.static import Static
from scheduler.shifting.wiring import WiredShifts, wire_shifts
from scheduler.wiring import World, wire


def tick_s(config: RunConfig) -> float:
    """Between two looks at the clock: shifts take less than the longer of these."""
    return 1.0 if config.runtime.layout == "disaggregated" else 0.2


def needs_costs(config: RunConfig) -> bool:
    """Whether a policy of the run weighs seconds, and wants them measured."""
    return config.runtime.layout != "disaggregated" or config.scheduler.routing.policy == "buckets"


def refuse_unfit_policies(config: RunConfig) -> None:
    """Raise ValueError when a policy does not take its options, before anything is measured."""
    shape = Shape(
        tp=1,
        decode=DecodeCost(b=0.0, b0=0.0, c=1e-4, a=0.0, d=1e-3),
        prefill=PrefillCost(per_token=1e-4),
        kv_tokens=config.runtime.slots * config.rollout.context_tokens,
    )
    has_judge = config.judge is not None and config.judge.type == "genrm"
    anywhere = Costs(
        rollout={bucket.name: shape for bucket in rollout_buckets(config)},
        genrm=shape if has_judge else None,
        training=TrainCost(per_token=1e-4),
        serving_start_s=1.0,
        training_start_s=1.0,
    )
    make_scheduler(config, anywhere if needs_costs(config) else None)


def recorded_costs(path: Path) -> Costs | None:
    """Those a run was made with; None when it needed none."""
    return Costs.load(path) if path.exists() else None


def make_scheduler(
    config: RunConfig, costs: Costs | None, observers: Sequence[Observer] = ()
) -> Scheduler:
    """`costs` as `needs_costs` says. `observers` look on and change nothing."""
    routing = config.scheduler.routing
    routed = wire(
        routing.policy,
        routing.options,
        World(
            shapes={} if costs is None else costs.rollout,
            buckets=tuple(bucket.name for bucket in rollout_buckets(config)),
            max_tokens=config.rollout.max_trajectory_tokens,
            seed=config.seed,
        ),
    )
    calibration = Calibration(None if costs is None else _known(costs))
    shifts = _shifts(config, costs, calibration)
    max_running = config.rollout.max_running * config.runtime.runners
    return Scheduler(
        observers=(*routed.observers, *shifts.observers, *observers),
        genrm_observers=shifts.genrm_observers,
        routing=routed.routing,
        exploration=routed.exploration,
        prewarming=routed.prewarming,
        shifting=shifts.policy,
        calibration=calibration,
        learners={**routed.learners, **shifts.learners},
        admission=CapacityAdmission(
            groups_per_step=config.train.fresh_groups_per_step,
            num_steps=config.train.steps,
            max_staleness=config.train.max_staleness,
            max_running_groups=max(1, max_running // config.rollout.group_size),
        ),
    )


def _known(costs: Costs) -> KnownCosts:
    """What was measured before the run, as the run's workers are called."""
    shapes = {(Role.ROLLOUT, bucket): shape for bucket, shape in costs.rollout.items()}
    if costs.genrm is not None:
        shapes |= {(Role.GENRM, bucket): costs.genrm for bucket in costs.rollout}
    return KnownCosts(shapes=shapes, training=costs.training, shift_s=_shift_s(costs))


def _shift_s(costs: Costs) -> dict[tuple[Role, Role], float]:
    serving = (Role.ROLLOUT, Role.GENRM)
    into_serving = {
        (source, target): costs.serving_start_s for source in Role for target in serving
    }
    return into_serving | {(source, Role.TRAINING): costs.training_start_s for source in serving}


def _shifts(config: RunConfig, costs: Costs | None, calibration: Calibration) -> WiredShifts:
    runtime, section = config.runtime, config.scheduler.shifting
    if costs is None or runtime.layout == "disaggregated":
        return WiredShifts(policy=Static())
    ((bucket, shape),) = costs.rollout.items()
    shapes = {Role.ROLLOUT: shape}
    if costs.genrm is not None:
        shapes[Role.GENRM] = costs.genrm
    world = ShiftWorld(
        shapes=shapes,
        buckets=dict.fromkeys(Role, bucket),
        max_running=runtime.slots,
        groups_per_step=config.train.fresh_groups_per_step,
        max_staleness=config.train.max_staleness,
        training=costs.training,
        shift_s=_shift_s(costs),
        calibration=calibration,
    )
    layout = {
        Role.TRAINING: runtime.training_workers,
        Role.ROLLOUT: num_rollout_workers(config),
        Role.GENRM: num_genrm_workers(config),
    }
    if runtime.layout == "colocated":
        return wire_shifts("colocated_phases", {}, world, layout)
    return wire_shifts(section.policy, section.options, world, layout)
