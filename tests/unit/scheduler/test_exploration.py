from __future__ import annotations

from random import Random

import pytest
from scheduler_driver import Driver
from scheduler_views import worker

from scheduler.decisions import Place
from scheduler.replay import replay
from scheduler.routing.exploration import Exploration
from scheduler.routing.least_load import LeastLoad


def placed(exploration: Exploration | None, num: int = 200) -> tuple[Driver, list[Place]]:
    driver = Driver(routing=LeastLoad(), exploration=exploration)
    for name in ("w0", "w1", "w2", "w3"):
        driver.worker(name, slots=1000)
    for i in range(num):
        driver.submit(f"t{i}")
        driver.ready(f"t{i}")
    decisions = [decision for entry in driver.log for decision in entry.decisions]
    return driver, [decision for decision in decisions if isinstance(decision, Place)]


def test_propensities_are_those_of_a_mixture() -> None:
    _, places = placed(Exploration(0.4, Random(3)))
    values = {round(place.propensity, 6) for place in places}
    assert values == {0.1, 0.7}
    random_share = sum(place.propensity < 0.5 for place in places) / len(places)
    assert random_share == pytest.approx(0.3, abs=0.1)


def test_without_exploration_nothing_is_random() -> None:
    _, places = placed(None)
    assert {place.propensity for place in places} == {1.0}


def test_only_free_workers_are_taken() -> None:
    full, free = worker("w0", running=2, slots=2), worker("w1", slots=2)
    exploration = Exploration(1.0, Random(0))
    assert all(exploration.deviate(free, [full, free]) == (free, 1.0) for _ in range(20))


def test_the_same_seed_replays() -> None:
    driver, _ = placed(Exploration(0.4, Random(3)))
    same = Driver(routing=LeastLoad(), exploration=Exploration(0.4, Random(3)))
    other = Driver(routing=LeastLoad(), exploration=Exploration(0.4, Random(4)))
    assert replay(same.scheduler, driver.log).difference is None
    assert replay(other.scheduler, driver.log).difference is not None


def test_shares_outside_zero_to_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        Exploration(1.5, Random(0))
