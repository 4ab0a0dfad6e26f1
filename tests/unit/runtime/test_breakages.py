import pytest

from agentrl.runtime.breakages import MAX_BREAKS, Breakages
from agentrl.runtime.failures import FailingEngines

REASON = "EngineError: logits are not finite"
ALL = ("worker-1", "worker-2")


def test_engines_that_all_break_again_and_again_end_the_run_with_the_reason() -> None:
    breakages = Breakages()
    for _ in range(MAX_BREAKS):
        breakages.broke("worker-1", ALL, REASON)
    for _ in range(MAX_BREAKS - 1):
        breakages.broke("worker-2", ALL, REASON)
    with pytest.raises(FailingEngines, match=r"worker-1, worker-2.* logits are not finite"):
        breakages.broke("worker-2", ALL, REASON)


def test_a_bad_device_beside_a_good_one_ends_nothing() -> None:
    breakages = Breakages()
    for _ in range(10 * MAX_BREAKS):
        breakages.broke("worker-1", ALL, REASON)


def test_what_gets_done_between_breaks_makes_them_begin_anew() -> None:
    breakages = Breakages()
    for _ in range(10 * MAX_BREAKS):
        breakages.broke("worker-1", ("worker-1",), REASON)
        breakages.progressed()
