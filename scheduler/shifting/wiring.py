"""Shift policies by name, with their options: what a YAML file can choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler.estimators.choose import DEFAULT, make_estimator
from scheduler.events import Role
from scheduler.policies import Learner, Observer, ShiftPolicy
from scheduler.shifting.colocated import ColocatedPhases
from scheduler.shifting.itl_planner import ItlPlanner
from scheduler.shifting.kv_rule import KvRule
from scheduler.shifting.outlook import MeanLength, Outlook
from scheduler.shifting.pay_back import PayBack, PayBackSettings
from scheduler.shifting.seeding import SeedingController
from scheduler.shifting.selection import ShiftWorld
from scheduler.shifting.static import Static


@dataclass(frozen=True, slots=True, kw_only=True)
class WiredShifts:
    policy: ShiftPolicy
    observers: tuple[Observer, ...] = ()
    genrm_observers: tuple[Observer, ...] = ()
    learners: Mapping[str, Learner] = field(default_factory=dict)
    """By a name that says what it takes to understand their states."""


Options = dict[str, Any]
Layout = Mapping[Role, int]
"""Workers by role at the start."""


def wire_shifts(
    name: str, options: Mapping[str, Any], world: ShiftWorld, layout: Layout
) -> WiredShifts:
    """A shift policy and what must observe for it."""
    build = _POLICIES.get(name)
    if build is None:
        raise ValueError(f"unknown shift policy {name!r}, known are {sorted(_POLICIES)}")
    if not can_start_with(name, layout, has_judge=world.has_judge):
        raise ValueError(
            f"shift policy {name!r} never fills a role that nobody has; the layout is "
            f"{dict(layout)}: give each role a worker, or choose one of {sorted(_FILLS_ROLES)}"
        )
    try:
        return build(dict(options), world, layout)
    except TypeError as error:
        raise ValueError(f"shift policy {name!r}: {error}") from None


def can_start_with(name: str, layout: Layout, *, has_judge: bool) -> bool:
    """Whether a policy gets a layout to work: each role is filled, or it fills roles by itself."""
    needed = [role for role in Role if role is not Role.GENRM or has_judge]
    return name in _FILLS_ROLES or all(layout.get(role, 0) for role in needed)


_FILLS_ROLES = {"colocated_phases", "pay_back"}


def _static(options: Options, world: ShiftWorld, layout: Layout) -> WiredShifts:
    return WiredShifts(policy=Static(**options))


def _colocated(options: Options, world: ShiftWorld, layout: Layout) -> WiredShifts:
    return WiredShifts(policy=ColocatedPhases(world, **options))


def _kv_rule(options: Options, world: ShiftWorld, layout: Layout) -> WiredShifts:
    trainers = layout.get(Role.TRAINING, 0)
    return WiredShifts(policy=KvRule(world, home_trainers=trainers, **options))


def _seeding(options: Options, world: ShiftWorld, layout: Layout) -> WiredShifts:
    trainers = layout.get(Role.TRAINING, 0)
    policy = SeedingController(world, num_trainers=trainers, **options)
    return WiredShifts(policy=policy, learners={"seeding": policy})


def _itl_planner(options: Options, world: ShiftWorld, layout: Layout) -> WiredShifts:
    trainers = layout.get(Role.TRAINING, 0)
    return WiredShifts(policy=ItlPlanner(world, num_trainers=trainers, **options))


def _pay_back(options: Options, world: ShiftWorld, layout: Layout) -> WiredShifts:
    name = options.pop("estimator", DEFAULT)
    estimator = make_estimator(name)
    outlook, judgements = Outlook(estimator), MeanLength()
    policy = PayBack(world, outlook, judgements, PayBackSettings(**options))
    return WiredShifts(
        policy=policy,
        observers=(outlook,),
        genrm_observers=(judgements,),
        learners={
            f"outlook by {name}": estimator,
            "judgements": judgements,
            "pay_back": policy,
        },
    )


_POLICIES: dict[str, Callable[[Options, ShiftWorld, Layout], WiredShifts]] = {
    "static": _static,
    "colocated_phases": _colocated,
    "kv_rule": _kv_rule,
    "seeding_controller": _seeding,
    "itl_planner": _itl_planner,
    "pay_back": _pay_back,
}
