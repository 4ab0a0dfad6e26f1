import pytest

from scheduler.admission import CapacityAdmission, OverSample
from scheduler.views import AdmissionView


def counters(version: int, accepted: int, running: int) -> AdmissionView:
    return AdmissionView(version=version, accepted_groups=accepted, running_groups=running)


def admission(**changes: int) -> CapacityAdmission:
    settings = {"groups_per_step": 4, "num_steps": 10, "max_running_groups": 100, **changes}
    return CapacityAdmission(**settings)


def test_synchronous_run_starts_one_batch_per_version() -> None:
    sync = admission(max_staleness=0)
    assert sync.admit(counters(version=0, accepted=0, running=0)) == 4
    assert sync.admit(counters(version=0, accepted=0, running=4)) == 0
    assert sync.admit(counters(version=0, accepted=3, running=1)) == 0
    assert sync.admit(counters(version=1, accepted=4, running=0)) == 4


def test_rejected_group_is_replaced_at_once() -> None:
    assert admission().admit(counters(version=2, accepted=10, running=1)) == 1


def test_staleness_lets_later_batches_start_early() -> None:
    stale = admission(max_staleness=2)
    assert stale.admit(counters(version=0, accepted=0, running=0)) == 12
    assert stale.admit(counters(version=1, accepted=5, running=7)) == 4


def test_running_attempts_bound_admission() -> None:
    assert admission(max_staleness=8, max_running_groups=5).admit(counters(0, 0, 3)) == 2


def test_run_never_admits_more_than_its_steps_train_on() -> None:
    stale = admission(max_staleness=4)
    assert stale.admit(counters(version=8, accepted=37, running=1)) == 2
    assert stale.admit(counters(version=9, accepted=40, running=0)) == 0


def test_resumed_counters_count() -> None:
    assert admission().admit(counters(version=5, accepted=20, running=0)) == 4


def test_room_for_no_group_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        admission(max_running_groups=0)


def test_over_sampling_starts_more_and_cuts_the_rest() -> None:
    policy = OverSample(groups_per_step=4, num_steps=2, factor=1.5)
    assert policy.admit(counters(version=0, accepted=0, running=0)) == 6
    assert not policy.cuts(counters(version=0, accepted=3, running=3))
    assert policy.cuts(counters(version=0, accepted=4, running=2))
    assert policy.admit(counters(version=0, accepted=4, running=2)) == 0
    assert policy.admit(counters(version=1, accepted=4, running=0)) == 6
    assert policy.admit(counters(version=2, accepted=8, running=0)) == 0
