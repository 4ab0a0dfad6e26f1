"""Shift policies on views put together by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from scheduler_views import trajectory, worker

from scheduler.costs import DecodeCost, PrefillCost, Shape, TrainCost
from scheduler.decisions import Duty
from scheduler.estimators.choose import make_estimator
from scheduler.events import Role, Stage
from scheduler.handoff import OpenShift
from scheduler.policies import ShiftPlan
from scheduler.shifting.balance import Balance
from scheduler.shifting.colocated import ColocatedPhases
from scheduler.shifting.itl_planner import ItlPlanner
from scheduler.shifting.kv_rule import KvRule
from scheduler.shifting.outlook import MeanLength, Outlook
from scheduler.shifting.pay_back import PayBack, PayBackSettings
from scheduler.shifting.rates import RoleRate
from scheduler.shifting.seeding import SeedingController
from scheduler.shifting.selection import ShiftWorld
from scheduler.shifting.wiring import wire_shifts
from scheduler.views import Demand, Member, ShiftView, TrainingView

SHAPE = Shape(
    tp=1,
    decode=DecodeCost(b=0.005, b0=0.003, c=1e-4, a=2e-8, d=0.001),
    prefill=PrefillCost(per_token=1e-4),
    kv_tokens=200_000,
)
SLOTS = 64
WORLD = ShiftWorld(
    shapes={Role.ROLLOUT: SHAPE, Role.GENRM: SHAPE},
    buckets={role: str(role) for role in Role},
    max_running=SLOTS,
    groups_per_step=10,
    training=TrainCost(per_token=1e-4, fixed_s=1.0),
    training_sizes=(1, 2, 4, 8),
    shift_s={(a, b): 6.0 for a in Role for b in Role},
)
TRAINING = TrainingView(
    version=1,
    accepted_groups=10,
    running_groups=10,
    batch_tokens=None,
    is_running=False,
    began_t=0.0,
    last_step_s=50.0,
    last_step_workers=4,
    last_step_tokens=1_000_000,
)


def members(role: Role, number: int, *, running: int = 0, since_t: float = 0.0) -> list[Member]:
    return [
        Member(
            worker=worker(
                f"{role}{i}",
                running=running,
                slots=SLOTS,
                role=role,
                running_tokens=1000 * running,
                kv_tokens=SHAPE.kv_tokens,
            ),
            duty=Duty(role=role, bucket=str(role), accelerators=frozenset({f"{role}{i}"})),
            since_t=since_t,
        )
        for i in range(number)
    ]


def view(
    *workers: Member,
    t: float = 100.0,
    rollout: Demand | None = None,
    genrm: Demand | None = None,
    open_shifts: tuple[OpenShift, ...] = (),
    **training: Any,
) -> ShiftView:
    demands = {Role.ROLLOUT: rollout or Demand(), Role.GENRM: genrm or Demand()}
    return ShiftView(
        t=t,
        members=tuple(workers),
        spares={},
        open_shifts=open_shifts,
        demands={("main", role): demand for role, demand in demands.items()},
        trainings={"main": replace(TRAINING, **training)},
    )


def moved(plan: ShiftPlan | None) -> dict[str, Role]:
    return {} if plan is None else {name: duty.role for name, duty in plan.moves.items()}


def queue(number: int) -> Demand:
    return Demand(waiting=number, waiting_tokens=1000 * number)


def busy(number: int) -> Demand:
    return Demand(decoding=number)


def pay_back(world: ShiftWorld = WORLD, **settings: Any) -> PayBack:
    outlook = Outlook(make_estimator("constant"))
    return PayBack(world, outlook, MeanLength(guess=1000.0), PayBackSettings(**settings))


# ---------------------------------------------------------------------------------------- rates


def test_worker_at_its_best_is_worth_one() -> None:
    rate = RoleRate(SHAPE, SLOTS, 1000.0)
    assert rate.worth(SLOTS * 4, 4) == pytest.approx(4.0)
    assert rate.worth(SLOTS * 40, 4) == pytest.approx(4.0)
    assert rate.worth(0, 4) == rate.worth(10, 0) == 0.0


def test_more_workers_help_less_and_less() -> None:
    rate = RoleRate(SHAPE, SLOTS, 1000.0)
    worths = [rate.worth(100, number) for number in range(1, 9)]
    gains = [b - a for a, b in pairwise(worths)]
    assert worths == sorted(worths)
    assert gains == sorted(gains, reverse=True)


def test_memory_bounds_what_runs() -> None:
    assert RoleRate(SHAPE, SLOTS, 10_000.0).most_running == 20


# ----------------------------------------------------------------------------------- colocated


def test_colocated_phases_follow_the_work() -> None:
    policy = ColocatedPhases(WORLD)
    rollouts = members(Role.ROLLOUT, 2)
    assert moved(policy.plan(view(*rollouts, rollout=busy(3), genrm=queue(3)))) == {}
    judging = moved(policy.plan(view(*rollouts, genrm=queue(3))))
    assert set(judging.values()) == {Role.GENRM}
    assert len(judging) == 2
    training = moved(policy.plan(view(*rollouts, batch_tokens=1000)))
    assert set(training.values()) == {Role.TRAINING}
    trainers = members(Role.TRAINING, 2)
    assert policy.plan(view(*trainers, rollout=queue(3), is_running=True)) is None
    assert len(moved(policy.plan(view(*trainers, rollout=queue(3))))) == 2


def test_colocated_phases_judge_what_attempts_wait_for_before_they_end() -> None:
    policy = ColocatedPhases(WORLD)
    asked = view(*members(Role.ROLLOUT, 2), rollout=Demand(resting=3), genrm=queue(3))
    assert moved(policy.plan(asked)) == {}
    assert set(moved(policy.plan(replace(asked, t=105.0))).values()) == {Role.GENRM}
    judges = members(Role.GENRM, 2)
    answered_one = view(*judges, rollout=queue(1), genrm=busy(2))
    assert moved(policy.plan(answered_one)) == {}
    answered_all = view(*judges, rollout=queue(3))
    assert set(moved(policy.plan(answered_all)).values()) == {Role.ROLLOUT}


# --------------------------------------------------------------------------------------- rivals


def test_rule_on_memory_moves_one_worker_from_the_empty_role_to_the_full_one() -> None:
    policy = KvRule(WORLD)
    workers = [*members(Role.ROLLOUT, 3), *members(Role.GENRM, 1, running=64)]
    asked = view(*workers, rollout=busy(0), genrm=Demand(waiting=5, decoding=64))
    assert list(moved(policy.plan(asked)).values()) == [Role.GENRM]
    assert policy.plan(replace(asked, t=105.0)) is None, "it cools down"


def test_rule_on_memory_calls_its_trainers_when_a_batch_waits() -> None:
    policy = KvRule(WORLD, home_trainers=2)
    lent = [*members(Role.ROLLOUT, 4)]
    assert list(moved(policy.plan(view(*lent, batch_tokens=10))).values()) == [Role.TRAINING] * 2


@pytest.mark.parametrize("rule", ["kv_rule", "itl_planner", "seeding_controller"])
def test_rules_that_fill_no_role_never_empty_one(rule: str) -> None:
    layout = {Role.ROLLOUT: 1, Role.GENRM: 1, Role.TRAINING: 3}
    policy = wire_shifts(rule, {}, WORLD, layout).policy
    lent = [*members(Role.ROLLOUT, 3), *members(Role.GENRM, 1)]
    roles = moved(policy.plan(view(*lent, batch_tokens=1000)))
    assert set(roles.values()) == {Role.TRAINING}
    assert len(roles) == 2
    assert "genrm0" not in roles


def test_itl_planner_sends_workers_where_requests_pile_up() -> None:
    policy = ItlPlanner(WORLD)
    workers = [*members(Role.ROLLOUT, 4, running=2), *members(Role.GENRM, 1, running=64)]
    asked = view(*workers, rollout=busy(8), genrm=Demand(waiting=300, decoding=64))
    roles = moved(policy.plan(asked))
    assert roles
    assert set(roles.values()) == {Role.GENRM}
    assert len(roles) < 4, "a role with work keeps a worker"


def test_seeding_lasts_longer_when_trainers_waited() -> None:
    policy = SeedingController(WORLD, num_trainers=2, seed_s=30.0)
    trainers = members(Role.TRAINING, 2)
    start = view(*trainers, *members(Role.ROLLOUT, 1), rollout=queue(90))
    assert set(moved(policy.plan(start)).values()) == {Role.ROLLOUT}
    lent = members(Role.ROLLOUT, 3)
    late = view(*lent, t=131.0, rollout=busy(60))
    assert list(moved(policy.plan(late)).values()) == [Role.TRAINING] * 2
    back = [*trainers, *members(Role.ROLLOUT, 1)]
    assert policy.plan(view(*back, t=140.0, rollout=busy(30))) is None
    assert policy.plan(view(*back, t=230.0, batch_tokens=10)) is None
    next_step = view(*back, t=260.0, rollout=queue(90), version=2)
    assert set(moved(policy.plan(next_step)).values()) == {Role.ROLLOUT}
    assert policy.plan(view(*lent, t=300.0, rollout=busy(60), version=2)) is None


# ------------------------------------------------------------------------------------- pay back


def test_idle_workers_go_to_the_queue() -> None:
    workers = [*members(Role.ROLLOUT, 4, running=1), *members(Role.GENRM, 1, running=64)]
    asked = view(*workers, rollout=busy(4), genrm=Demand(waiting=400, decoding=64))
    roles = moved(pay_back().plan(asked))
    assert len(roles) >= 2
    assert set(roles.values()) == {Role.GENRM}


def test_busy_workers_stay_for_a_short_queue() -> None:
    workers = [*members(Role.ROLLOUT, 4, running=64), *members(Role.GENRM, 1, running=4)]
    asked = view(*workers, rollout=Demand(waiting=200, decoding=256), genrm=busy(4))
    assert moved(pay_back().plan(asked)) == {}


def test_shift_that_takes_longer_than_the_work_lasts_does_not_pay() -> None:
    slow = replace(WORLD, shift_s={**WORLD.shift_s, (Role.ROLLOUT, Role.GENRM): 300.0})
    workers = [*members(Role.ROLLOUT, 4, running=1), *members(Role.GENRM, 1, running=64)]
    asked = view(*workers, rollout=busy(4), genrm=Demand(waiting=64, decoding=64))
    assert moved(pay_back(slow).plan(asked)) == {}


def test_worker_that_has_just_moved_stays() -> None:
    workers = [
        *members(Role.ROLLOUT, 4, running=1, since_t=99.0),
        *members(Role.GENRM, 1, running=64),
    ]
    asked = view(*workers, rollout=busy(4), genrm=Demand(waiting=400, decoding=64))
    assert moved(pay_back(immunity_s=8.0).plan(asked)) == {}


def test_batch_that_waits_gets_everybody_who_has_nothing_to_do() -> None:
    workers = members(Role.ROLLOUT, 8)
    roles = moved(pay_back().plan(view(*workers, batch_tokens=4_000_000)))
    assert len(roles) == 8
    assert set(roles.values()) == {Role.TRAINING}


def test_only_workers_that_may_train_are_asked_to() -> None:
    world = replace(WORLD, may_train=frozenset({"rollout3", "rollout5"}))
    roles = moved(pay_back(world).plan(view(*members(Role.ROLLOUT, 8), batch_tokens=4_000_000)))
    assert set(roles) == {"rollout3", "rollout5"}


def test_short_step_is_left_to_those_who_are_there() -> None:
    workers = [*members(Role.TRAINING, 4), *members(Role.ROLLOUT, 4)]
    assert moved(pay_back().plan(view(*workers, batch_tokens=100_000))) == {}


def test_trainers_number_is_always_valid() -> None:
    workers = members(Role.ROLLOUT, 7)
    assert len(moved(pay_back().plan(view(*workers, batch_tokens=4_000_000)))) == 4


def test_trainers_help_out_when_the_batch_is_far_and_not_when_it_is_near() -> None:
    workers = [*members(Role.TRAINING, 4), *members(Role.ROLLOUT, 2, running=64)]
    far = view(*workers, rollout=Demand(waiting=4000, decoding=128))
    assert set(moved(pay_back().plan(far)).values()) == {Role.ROLLOUT}
    near = view(*workers, rollout=busy(2), running_groups=1, accepted_groups=19)
    assert moved(pay_back().plan(near)) == {}


def test_role_without_workers_is_rescued() -> None:
    asked = view(*members(Role.ROLLOUT, 3, running=64), rollout=busy(192), genrm=queue(1))
    assert list(moved(pay_back().plan(asked)).values()) == [Role.GENRM]
    shift = OpenShift(
        worker_id="w",
        source=Duty(role=Role.ROLLOUT, accelerators=frozenset({"w"})),
        target=Duty(role=Role.GENRM, accelerators=frozenset({"w"})),
        stage=Stage.LOAD,
        began_t=95.0,
    )
    assert moved(pay_back().plan(replace(asked, open_shifts=(shift,)))) == {}


def test_rescue_takes_an_idle_trainer_before_the_last_worker_that_is_needed() -> None:
    """Two workers and three roles, after the last step: nothing is left to train."""
    workers = (*members(Role.ROLLOUT, 1, running=8), *members(Role.TRAINING, 1))
    asked = view(*workers, rollout=busy(8), genrm=queue(4))
    plan = pay_back().plan(asked)
    assert plan is not None
    (moving,) = plan.moves
    assert moving in {m.worker.worker_id for m in workers if m.duty.role is Role.TRAINING}


def test_worker_that_has_just_moved_joins_a_batch_when_there_is_nothing_else_to_do() -> None:
    """Two workers have judged the last attempts; a batch that waits trains twice as fast on both."""
    workers = (*members(Role.GENRM, 1), *members(Role.ROLLOUT, 1, since_t=99.9))
    asked = view(*workers, batch_tokens=1_000_000)
    assert len(moved(pay_back().plan(asked))) == 2


def test_all_trainers_turn_to_rollout_when_the_step_is_done_and_nobody_serves() -> None:
    policy = pay_back(margin=0.05)
    asked = view(*members(Role.TRAINING, 2), rollout=queue(128), running_groups=10)
    assert list(moved(policy.plan(asked)).values()) == [Role.ROLLOUT] * 2


def test_patience_lets_requests_gather_while_there_is_other_work() -> None:
    policy = pay_back(patience_s=5.0)
    asked = view(*members(Role.ROLLOUT, 2, running=64), rollout=busy(128), genrm=queue(1))
    assert moved(policy.plan(asked)) == {}
    assert moved(policy.plan(replace(asked, t=104.0))) == {}
    assert list(moved(policy.plan(replace(asked, t=105.0))).values()) == [Role.GENRM]


def test_patience_is_not_asked_of_those_whom_an_idle_worker_can_serve() -> None:
    """All that is open on the side of rollout waits for its judgement."""
    policy = pay_back(patience_s=5.0)
    asked = view(*members(Role.ROLLOUT, 2), rollout=Demand(resting=3), genrm=queue(3))
    assert list(moved(policy.plan(asked)).values()) == [Role.GENRM]


def test_role_whose_model_does_not_fit_is_never_offered() -> None:
    small = replace(SHAPE, kv_tokens=1000)
    world = replace(
        WORLD,
        shapes={Role.ROLLOUT: SHAPE, Role.GENRM: small},
        longest_context_tokens=8000,
    )
    workers = [*members(Role.ROLLOUT, 4, running=1), *members(Role.GENRM, 1, running=64)]
    asked = view(*workers, rollout=busy(4), genrm=Demand(waiting=400, decoding=64))
    assert moved(pay_back(world).plan(asked)) == {}


def test_turn_ends_where_it_runs_when_that_is_sooner_than_its_context_elsewhere() -> None:
    policy = pay_back()
    nearly_done = trajectory(turn_tokens=(100, 100), tokens=299, context_tokens=20_000)
    assert policy.lets_finish(nearly_done, worker("w", running=4))
    just_begun = trajectory(turn_tokens=(900, 900), tokens=1801, context_tokens=2_000)
    assert not policy.lets_finish(just_begun, worker("w", running=4))
    assert not policy.lets_finish(trajectory(), worker("w", running=4))


def test_overlapping_stages_are_balanced() -> None:
    world = replace(WORLD, max_staleness=1)
    balance = Balance(world)
    training = replace(
        TRAINING, version=0, accepted_groups=0, running_groups=10, batch_tokens=3_000_000
    )
    for t, trainers in ((0.0, 4), (40.0, 4), (400.0, 1)):
        balance.watch(t, training, worth=8.0, serving=8, left_s=0.0)
        assert balance.trainers(8) == trainers


def test_balance_learns_that_serving_workers_are_half_idle() -> None:
    chosen = []
    for worth in (8.0, 2.0):
        balance = Balance(replace(WORLD, max_staleness=1))
        waiting = replace(TRAINING, last_step_tokens=3_000_000)
        balance.watch(0.0, replace(waiting, version=0), worth=0.0, serving=8, left_s=0.0)
        for t in range(1, 300):
            balance.watch(float(t), waiting, worth=worth, serving=8, left_s=900.0 - worth * t)
        chosen.append(balance.trainers(8))
    assert chosen[0] > chosen[1]


# --------------------------------------------------------------------------------------- wiring


@pytest.mark.parametrize(
    "name",
    ["static", "colocated_phases", "kv_rule", "itl_planner", "seeding_controller", "pay_back"],
)
def test_every_policy_is_chosen_by_name(name: str) -> None:
    wired = wire_shifts(name, {}, WORLD, {Role.ROLLOUT: 2, Role.GENRM: 1, Role.TRAINING: 1})
    workers = [*members(Role.ROLLOUT, 2, running=64), *members(Role.GENRM, 1)]
    wired.policy.plan(view(*workers, rollout=busy(128)))


def test_unknown_policies_and_options_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown shift policy"):
        wire_shifts("dynamic", {}, WORLD, {})
    with pytest.raises(ValueError, match="horizon"):
        wire_shifts("pay_back", {"horizon": 3}, WORLD, {})


@pytest.mark.parametrize("name", ["static", "kv_rule", "itl_planner", "seeding_controller"])
def test_layout_that_leaves_a_role_empty_is_refused_by_those_who_never_fill_it(name: str) -> None:
    with pytest.raises(ValueError, match="never fills"):
        wire_shifts(name, {}, WORLD, {Role.ROLLOUT: 4})
    wire_shifts("pay_back", {}, WORLD, {Role.ROLLOUT: 4})
