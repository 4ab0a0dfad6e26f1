"""Policies by name, with their options: what a YAML file can choose from.

Every policy of a comparison is built here, ours and its rivals, so that nobody gets a special path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any

from scheduler.costs import Shape
from scheduler.estimators.choose import DEFAULT, LearningEstimator, make_estimator
from scheduler.estimators.oracle import Oracle, TotalTokens
from scheduler.estimators.prefix_tree import PrefixTree
from scheduler.estimators.sibling_rule import SiblingRule
from scheduler.policies import Learner, LengthEstimator, Observer, PrewarmPolicy, RoutePolicy
from scheduler.routing.buckets import BucketRouter, BucketSettings
from scheduler.routing.exploration import Exploration
from scheduler.routing.least_load import LeastLoad
from scheduler.routing.longest_first import LongestFirst
from scheduler.routing.round_robin import RoundRobin
from scheduler.routing.thresholds import ElapsedGrader, GatedGrader, Limits, ThresholdRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a policy may be built from, besides its options."""

    shapes: Mapping[str, Shape]
    """By bucket."""
    buckets: tuple[str, ...]
    """Those the fleet has, from narrow to wide."""
    max_tokens: int
    seed: int = 0
    """Of the routing's random share."""
    truth: TotalTokens | None = None
    """For clairvoyant yardsticks, in simulations only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wired:
    routing: RoutePolicy
    observers: tuple[Observer, ...] = ()
    exploration: Exploration | None = None
    prewarming: PrewarmPolicy | None = None
    learners: Mapping[str, Learner] = field(default_factory=dict)
    """By a name that says what it takes to understand their states."""


Options = dict[str, Any]

STICKY_GAP = 0.2
"""Of a worker's slots: below this, the cache of the last turn is worth more than a shorter line."""


def wire(name: str, options: Mapping[str, Any], world: World) -> Wired:
    """A routing policy and what must observe for it."""
    build = _POLICIES.get(name)
    if build is None:
        raise ValueError(f"unknown routing policy {name!r}, known are {sorted(_POLICIES)}")
    rest = dict(options)
    explore = rest.pop("explore", 0.0)
    wired = build(rest, world)
    if explore:
        wired = replace(wired, exploration=Exploration(explore, Random(world.seed)))
    if rest:
        raise ValueError(f"routing policy {name!r} has no option {sorted(rest)}")
    return wired


def _least_load(options: Options) -> LeastLoad:
    return LeastLoad(
        sticky_gap=options.pop("sticky_gap", STICKY_GAP),
        waits_for_home=options.pop("waits_for_home", False),
    )


def _limits(options: Options, world: World) -> Limits:
    """One limit fewer than there are buckets; tokens, rising."""
    limits = options.pop("limits", [4000.0, 12_000.0, 30_000.0])
    bounds = [*map(float, limits[: len(world.buckets) - 1]), float("inf")]
    return tuple(zip(world.buckets, bounds, strict=True))


def _estimator(name: str, options: Options) -> LearningEstimator:
    return make_estimator(
        name,
        half_life=options.pop("half_life", 2000.0),
        learns_from_running=options.pop("learns_from_running", True),
        backs_off=options.pop("backs_off", True),
    )


def _round_robin(options: Options, world: World) -> Wired:
    return Wired(routing=RoundRobin())


def _wire_least_load(options: Options, world: World) -> Wired:
    return Wired(routing=_least_load(options))


def _elapsed_queue(options: Options, world: World) -> Wired:
    limits = _limits(options, world)
    return Wired(routing=ThresholdRouter(ElapsedGrader(limits), limits, _least_load(options)))


def _libra_gate(options: Options, world: World) -> Wired:
    limits = _limits(options, world)
    tree = PrefixTree()
    router = ThresholdRouter(GatedGrader(limits, tree), limits, _least_load(options))
    return Wired(routing=router, observers=(tree,), learners={"prefix tree": tree})


def _sibling_rule(options: Options, world: World) -> Wired:
    rule = SiblingRule(max_tokens=world.max_tokens)
    return Wired(routing=LongestFirst(rule, _least_load(options)))


def _buckets(options: Options, world: World) -> Wired:
    name = options.pop("estimator", DEFAULT)
    estimator = _estimator(name, options)
    wired = _bucket_router(estimator, options, world)
    return replace(wired, learners={f"lengths by {name}": estimator})


def _bucket_router(estimator: LengthEstimator, options: Options, world: World) -> Wired:
    prewarms = options.pop("prewarm", False)
    known = {field.name for field in fields(BucketSettings)}
    settings = BucketSettings(**{key: options.pop(key) for key in known & options.keys()})
    router = BucketRouter(estimator, world.shapes, settings)
    prewarming = router if prewarms else None
    return Wired(routing=router, observers=(router,), prewarming=prewarming)


def _oracle(options: Options, world: World) -> Oracle:
    assert world.truth is not None, "only a simulation knows the truth"
    return Oracle(world.truth, log_noise=options.pop("log_noise", 0.0))


def _clairvoyant(options: Options, world: World) -> Wired:
    return _bucket_router(_oracle(options, world), options, world)


def _clairvoyant_longest(options: Options, world: World) -> Wired:
    return Wired(routing=LongestFirst(_oracle(options, world), _least_load(options)))


_POLICIES: dict[str, Callable[[Options, World], Wired]] = {
    "round_robin": _round_robin,
    "least_load": _wire_least_load,
    "elapsed_queue": _elapsed_queue,
    "libra_gate": _libra_gate,
    "sibling_rule": _sibling_rule,
    "buckets": _buckets,
    "clairvoyant": _clairvoyant,
    "clairvoyant_longest": _clairvoyant_longest,
}
